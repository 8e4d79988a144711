"""A small real training job on eight processes, one of them slow: the first thing to point `tracekit` at.

    python -m reftrain.demo --out demo_run

Two-way tensor, pipeline and data parallel on Gloo. Forked processes, matrix products, backward, optimiser and
communication are real; the slow rank does more work, and nothing writes into a trace. `model` is one pipeline
stage, `job` the training of one rank, `folder` the run folder, `__main__` the command.
"""
