"""One rank's training: the trainer, its optimiser and its checkpoints."""
