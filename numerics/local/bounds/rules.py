"""The rules of bounded tensors, by group: importing this module registers them all (`bounded.RULES`)."""

from numerics.local.bounds import (
    arithmetic_rules,
    attention_bound,
    convolution_bound,
    function_bounds,
    move_rules,
    random_rules,
)

__all__ = [
    "arithmetic_rules",
    "attention_bound",
    "convolution_bound",
    "function_bounds",
    "move_rules",
    "random_rules",
]
