"""Explanations of a slow step (rank, host, link, stage, node, data), each priced by what a step saves without it."""
