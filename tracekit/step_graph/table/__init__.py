"""Operation tables with fully known dependencies: simulated steps, ideal work, slowdowns (OSDI'25)."""
