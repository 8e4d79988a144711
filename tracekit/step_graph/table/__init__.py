"""Operation tables, with all dependencies known: simulated steps, ideal work, slowdowns (OSDI'25)."""
