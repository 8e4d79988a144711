"""The recorder: what a trainer calls to leave a capture behind."""
