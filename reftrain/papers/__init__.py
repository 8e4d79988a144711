"""The tables and figures of the source papers beside ours: what `reftrain reproduce` prints. See `registry`."""
