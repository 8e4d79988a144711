"""Random numbers of a forward: which elements were dropped, which modules draw, and which ranks draw apart."""
