"""Answers to hypotheses and gaps, in words: a culprit, health, an imbalance, or an open question."""
