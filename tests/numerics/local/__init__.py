"""Tests of the local proof: bounds, forced passes, and trainers that this project did not design."""
