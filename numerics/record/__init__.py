"""Records captures: the recorder that a trainer calls, and hooks for whole PyTorch models."""
