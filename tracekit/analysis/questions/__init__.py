"""What the step would take if a rank, a stage, an axis or an operation were typical: fixes, and standard questions."""
