"""The cost of precision: expected rounding, buffers that need FP32, and the precision ladder."""
