"""The optimiser's step: repeated from the record, with its settings and learning rates."""
