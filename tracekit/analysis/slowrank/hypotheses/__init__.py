"""Explanations of a slow step (rank, host, link, stage, node, data), each with the time that the step would save."""
