"""Local proof: each recorded piece of a run is checked from its own recorded inputs, so that nothing drifts."""
