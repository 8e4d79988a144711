"""The loss function: its value and gradient, how each position counts, and padding."""
