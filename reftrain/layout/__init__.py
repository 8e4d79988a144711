"""Tables that recorder and replay both read: which rank holds which part, and how a ring cuts a buffer."""
