"""The trend of a job over many windows: drift, changes at once, a daily swing, and ranks that become slower."""
