"""Local proof: each recorded piece of a run is checked from its own recorded inputs, so that nothing drifts.

The modules named here hold the rules of bounded tensors; importing them registers the rules.
"""

from numerics.local import (
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
