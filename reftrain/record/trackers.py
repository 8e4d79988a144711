"""A run's figures in trackers of experiments, through one small interface: a name and numbers at a step.

Each tracker is an extra of this distribution, imported on rank 0 when the configuration names it.
`tracekit.report.trackers` puts an answer of `slowrank` into the same ones.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from reftrain.config.run import RunConfig
from reftrain.rank.events import Evaluation, StepMetrics
from reftrain.rank.hooks import Hooks, RunContext
from tracekit.installation import check_extra


class Tracker(Protocol):
    """Takes numbers by name at a step."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of one step."""
        ...

    def close(self) -> None:
        """End the record."""
        ...


class TensorBoard:
    """Scalars in OUT/tensorboard."""

    def __init__(self, config: RunConfig) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(Path(config.out) / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of one step."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; project and account come from its own environment variables."""

    def __init__(self, config: RunConfig) -> None:
        import wandb

        tables = {name: value for name, value in dataclasses.asdict(config).items() if name != "evidence"}
        self._run = wandb.init(dir=config.out, config=tables, resume="allow")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MlFlow:
    """A run of MLflow, on the server that its environment variables name."""

    def __init__(self, config: RunConfig) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.start_run(run_name=Path(config.out).name)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of one step."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


TRACKERS: Final[Mapping[str, Callable[[RunConfig], Tracker]]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MlFlow,
}
"""Trackers by the name of their extra."""


class Tracking(Hooks):
    """Sends the figures of steps and evaluations to the trackers that the configuration names, from rank 0."""

    def __init__(self, names: tuple[str, ...]) -> None:
        for name in names:
            check_extra(name, f"evidence.trackers = {name}")
        self._names = names
        self._trackers: list[Tracker] = []

    def setup(self, context: RunContext) -> None:
        """Open the trackers."""
        if context.rank == 0:
            self._trackers = [TRACKERS[name](context.config) for name in self._names]

    def step_end(self, metrics: StepMetrics) -> None:
        """Send a step."""
        found: dict[str, float | None] = {
            "train/loss": metrics.loss,
            "train/grad_norm": metrics.grad_norm,
            "train/learning_rate": metrics.learning_rate,
            "train/tokens_per_s": metrics.tokens_per_s,
            "train/step_s": metrics.step_s,
            "train/mfu": metrics.mfu,
        }
        self._log({name: value for name, value in found.items() if value is not None}, metrics.step)

    def evaluation_end(self, evaluation: Evaluation) -> None:
        """Send an evaluation."""
        self._log({"evaluation/loss": evaluation.loss}, evaluation.step)

    def close(self) -> None:
        """End the records."""
        for tracker in self._trackers:
            tracker.close()

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for tracker in self._trackers:
            tracker.log(values, step)
