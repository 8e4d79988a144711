"""How a job changes over many windows: drift, changes at once, a daily swing, and ranks slower than before."""
