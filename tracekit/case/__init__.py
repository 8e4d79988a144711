"""A recorded job as every analysis reads it: opened, measured, compared, with a model of its step and its cures."""
