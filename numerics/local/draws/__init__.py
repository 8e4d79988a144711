"""Random numbers of a forward: which elements were dropped, who draws, and which ranks draw apart."""
