"""Executes a training step: the pipeline schedule, FSDP2, the sums of gradients."""
