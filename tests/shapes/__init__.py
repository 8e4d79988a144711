"""Jobs in the shapes of real frameworks, whose traces measure whom `slowrank` names.

Nothing here knows tracekit, `reftrain` or the other generators (`tests/house/test_independence.py` checks it). A case
is drawn from a seed (`draw`: `broad`, `pipelines`, `targets`, `newer`), each rank runs the program of its framework
(`ddp`, `zero`, `fsdp`, `megatron`, `interleaved`, `experts`; from 3000 on `flat`, `kept`, `stages`, `symmetric`,
`tuned`), calls become a graph of timed nodes (`rank`, `forms`, `graph`, `network`), and its times are written as Kineto
writes them (`kineto`). The truth is the same job without its fault.
"""
