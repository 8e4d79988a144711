"""Inputs that once killed a reader or fooled an answer, smallest form first."""
