"""A parameter server with bounded staleness, as a baseline: trained by real processes, simulated, replayed."""
