"""Compares two captures: joins them, finds the first divergence, explains it and decides."""
