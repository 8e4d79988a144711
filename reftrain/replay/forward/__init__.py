"""Llama's forward for all virtual ranks of a stage."""
