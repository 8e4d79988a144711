"""What a step could take."""
