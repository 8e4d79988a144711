"""Databases that Nsight Systems exported (`nsys export --type sqlite`) as the same event tables as traces."""
