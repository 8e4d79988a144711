"""The axes of 4D parallelism, written once: every package and command reads their names and order here."""

from typing import Final

AXES: Final = ("tp", "cp", "pp", "dp")
"""Axes in Llama 3's default order, inner to outer ("The Llama 3 Herd of Models", section 3.3.2)."""

DESCENT: Final = AXES[::-1]
"""The order in which a slow rank is looked for: DP → PP → CP → TP, outer to inner."""
