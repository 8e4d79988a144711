"""Structure-aware mutation of every kind of file that the three programs read: `make fuzz`."""
