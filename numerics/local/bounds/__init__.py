"""Tensors that carry a bound of their rounding, and the rules by which operators pass it on."""
