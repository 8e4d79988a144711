"""The matched sequential baseline: repeats a run's arithmetic in one process, without collectives.

Written apart from the trainer, so that a fault in any file of the trainer is not in here: nothing of
`reftrain.model`, `parallel`, `trainer`, `comm`, `loss`, `optim` or `schedule` is imported. What is shared is
the configuration, the definition of the data, and torch.
"""
