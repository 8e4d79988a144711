"""Every threshold, tolerance and bound of numerics, each with its reason; one module a room.

Sizes of untrusted input are bounded so that a damaged or hostile file ends in one sentence and not in exhausted
memory. Tolerances are multiples of unit roundoffs where rounding is the only other cause of a difference.
"""
