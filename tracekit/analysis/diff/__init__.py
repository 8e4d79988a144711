"""What changed between two runs of one job: its step, the parts of it, ranks and kernels, tested over steps."""
