"""What contradicts a job that goes on after deaths, or that evaluates between its steps."""

from reftrain.config.tables import Tables
from reftrain.errors import ConfigError
from reftrain.schedule.registry import SCHEMES


def check_job(config: Tables) -> None:
    """Raise `ConfigError` for the first contradiction."""
    check_elastic(config)
    check_evaluation(config)


def check_elastic(config: Tables) -> None:
    """Refuse an elastic job that has nothing to go on from, or more replicas to keep than it has."""
    elastic, replicas = config.elastic, config.mesh.dp
    if elastic.enabled and not config.checkpoint.every:
        raise ConfigError(
            "checkpoint.every",
            "0 saves nothing that an elastic job could go on from",
            "give the steps between checkpoints, e.g. --set checkpoint.every=10",
        )
    if elastic.min_replicas > replicas:
        raise ConfigError(
            "elastic.min_replicas",
            f"{elastic.min_replicas} replicas are more than dp {replicas}",
            f"give 0 to {replicas}",
        )


def check_evaluation(config: Tables) -> None:
    """Refuse evaluation without held-out data, and where forwards alone cannot run or would be recorded as training."""
    if not config.evaluation.every:
        return
    refusals = (
        (
            config.data.source != "synthetic" and not config.evaluation.files,
            "evaluation.files",
            "no data are held out",
            "name files that data.files does not hold",
        ),
        (
            not set(config.evaluation.files).isdisjoint(config.data.files),
            "evaluation.files",
            "holds a file that trains",
            "hold it out of data.files",
        ),
        (
            not SCHEMES[config.pipeline.schedule].synchronous,
            "evaluation.every",
            f"stages of {config.pipeline.schedule} are never at one step",
            "set it to 0, or choose a synchronous pipeline.schedule",
        ),
        (
            config.encoder.layers > 0,
            "evaluation.every",
            "held-out data have no images",
            "set it to 0",
        ),
        (
            bool(config.evidence.capture),
            "evidence.capture",
            "would hold evaluations as if they trained",
            "unset it, or set evaluation.every to 0",
        ),
    )
    for wrong, field, problem, remedy in refusals:
        if wrong:
            raise ConfigError(field, problem, remedy)
