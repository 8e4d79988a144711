"""What precision costs: expected rounding, buffers that need FP32, and the precision ladder."""
