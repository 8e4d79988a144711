"""What must hold within one correct run, and where it does not."""
