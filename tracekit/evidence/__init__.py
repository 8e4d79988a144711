"""Evidence of a stuck job beside dumps and traces: logs, stacks, NCCL's RAS; each is read by one module here."""
