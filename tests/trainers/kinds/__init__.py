"""One file for each kind of trainer: its model, its loop, and the cases that use it."""
