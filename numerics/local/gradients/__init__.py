"""Gradients and sums over ranks: in which order they were added, and whether all addends are there."""
