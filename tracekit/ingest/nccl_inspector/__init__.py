"""Records of NCCL's Inspector as the same event tables as traces."""
