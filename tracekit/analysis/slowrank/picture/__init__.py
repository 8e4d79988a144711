"""What the page draws of a case, as arrays."""
