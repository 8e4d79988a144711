"""Simulator of 4D-parallel training jobs whose Kineto traces have a known culprit, or none.

It represents reality to the analyses and knows nothing of them: truth is planted here, measured by simulating
the same job without the fault, and never written to the trace.
"""

from tests.generator.case import Case, generate
from tests.generator.spec import FAULT_KINDS, KINDS, Truth

__all__ = ["FAULT_KINDS", "KINDS", "Case", "Truth", "generate"]
