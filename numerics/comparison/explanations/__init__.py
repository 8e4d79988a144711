"""Rules that relate the wrong tensor to the right one, in one sentence."""
