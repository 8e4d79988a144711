"""The same findings as text and as JSON; nothing is computed here."""
