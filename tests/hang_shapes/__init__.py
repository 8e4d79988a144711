"""Hung jobs of real frameworks as flight-recorder dumps, which measure whom `tracekit hang` names.

Nothing here knows tracekit, `reftrain` or the other generators (`tests/house/test_independence.py` checks it). A case
is drawn from a seed (`draw`): ranks get the programs of their framework (`megatron`, `fsdp`), a fault changes the
program of its culprit (`fault`), hosts and devices run until nothing moves any more (`machine`, `task`), and each
rank's ring is written as NCCL's recorder writes it (`ring`, `dump`). The truth is the rank whose program was changed.
"""
