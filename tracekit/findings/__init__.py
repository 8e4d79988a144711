"""What an analysis says, as data: text and JSON come from these objects alone."""
