"""Tables that recorder and replay both read: ranks, parameters, and the part of each tensor that a rank holds."""
