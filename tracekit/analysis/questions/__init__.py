"""The length of a step with a typical rank, stage, axis or operation: fixes of a user, and standard questions."""
