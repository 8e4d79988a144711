"""Parallel building blocks of a model: tensor and context parallelism, ring attention, the split cross-entropy."""
