"""Decides about a case: one ordered list of rules, and one list of challenges to the answer they give."""
