"""Operation tables, whose dependencies are all known: simulated steps, ideal work, slowdowns (OSDI'25)."""
