"""How long work and transfers would take on a typical rank, and how much longer a rank takes than that."""
