"""Trainers as users bring them, healthy and broken, and what `numerics compare` answers about each."""
