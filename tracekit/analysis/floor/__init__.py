"""What the step could take: its parts from peak to achieved FLOP/s, and the step under five assumptions."""
