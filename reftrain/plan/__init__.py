"""Mesh, schedule and memory of a job, chosen before it runs."""
