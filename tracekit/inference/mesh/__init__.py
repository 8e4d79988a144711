"""The mesh of a run: from the user, the process groups, a manifest or the messages."""
