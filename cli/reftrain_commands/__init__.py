"""The commands of `reftrain`, and what they print."""
