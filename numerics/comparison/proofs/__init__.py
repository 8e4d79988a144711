"""What a local proof says of a case, and of its baseline."""
