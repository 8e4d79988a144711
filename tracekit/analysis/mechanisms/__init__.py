"""What within a cause takes the time: which kernels of a slow device, and what a paused host did."""
