"""Flight-recorder dumps with timing as the same event tables as traces."""
