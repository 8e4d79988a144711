"""Reference programs that leave real traces with known truth."""
