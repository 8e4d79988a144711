"""The answer in trackers of experiments, beside the curves of training: numbers as scalars, the page as an artefact.

Each is an extra, imported when it is asked for. A training job, or a script after it, calls one with its own run.
"""

import time
from pathlib import Path
from typing import Any

from tracekit.findings import SlowRankFinding
from tracekit.installation import check_extra


def scalars(finding: SlowRankFinding) -> dict[str, float]:
    """Return the numbers of an answer by name, times in ms; what is not known has no entry."""
    found = {
        "slowrank/step_ms": finding.what_if.step_ms,
        "slowrank/without_suspects_ms": finding.what_if.without_suspects_ms,
        "slowrank/slowdown": finding.what_if.slowdown,
        "slowrank/suspects": float(len(finding.suspects)),
    }
    if finding.coverage.matched is not None:
        found["slowrank/matched"] = finding.coverage.matched
    return found | {f"slowrank/lost_ms/rank{s.rank}": s.lost_ms_per_step for s in finding.suspects}


def to_tensorboard(finding: SlowRankFinding, folder: str | Path, step: int = 0) -> None:
    """Write the scalars of an answer into a log folder of TensorBoard, at a training step."""
    check_extra("tensorboard", "to_tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(finding).items()]
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
    writer.close()


def to_wandb(finding: SlowRankFinding, run: Any, page: str | Path | None = None) -> None:
    """Log the scalars of an answer to a run of Weights & Biases, and its `page` (`--html`) as an HTML panel."""
    check_extra("wandb", "to_wandb")
    import wandb

    panel = {} if page is None else {"slowrank/page": wandb.Html(Path(page).read_text(encoding="utf-8"))}
    run.log({**scalars(finding), **panel})


def to_mlflow(finding: SlowRankFinding, page: str | Path | None = None, step: int = 0) -> None:
    """Log the scalars of an answer to MLflow's active run, at a training step, and its `page` as an artefact."""
    check_extra("mlflow", "to_mlflow")
    import mlflow

    mlflow.log_metrics(scalars(finding), step=step)
    if page is not None:
        mlflow.log_artifact(str(page), artifact_path="slowrank")
