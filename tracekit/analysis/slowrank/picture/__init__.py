"""The charts of a case for an HTML page, as arrays."""
