"""What the evidence leaves open, and how much time it could hide."""
