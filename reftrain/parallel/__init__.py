"""One file an axis: tensor, context, data and pipeline parallelism."""
