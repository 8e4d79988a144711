"""Progress of a training run on stderr."""

import contextlib
import os
from pathlib import Path
from typing import IO

import click

from reftrain.rank.events import Evaluation, StepMetrics
from reftrain.rank.hooks import Hooks


class Progress(Hooks):
    """One line a step on stderr, from rank 0, also where the rank's stderr goes to its log from then on."""

    def __init__(self) -> None:
        self._stderr: IO[str] | None = None
        with contextlib.suppress(OSError):  # there is no stderr
            self._stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Close the copy of stderr."""
        if self._stderr is not None:
            self._stderr.close()

    def step_end(self, metrics: StepMetrics) -> None:
        """Write step, loss, speed and, where the peak is known, MFU."""
        if self._stderr is None:
            return
        mfu = "" if metrics.mfu is None else f"  MFU {metrics.mfu:.1%}"
        click.echo(
            f"step {metrics.step}  loss {metrics.loss:.4f}  grad norm {metrics.grad_norm:.3g}  "
            f"{metrics.tokens_per_s:,.0f} tokens/s  {metrics.step_s:.2f} s{mfu}",
            file=self._stderr,
        )

    def evaluation_end(self, evaluation: Evaluation) -> None:
        """Write the loss on held-out data."""
        if self._stderr is not None:
            click.echo(
                f"evaluation after step {evaluation.step}  loss {evaluation.loss:.4f}", file=self._stderr
            )


def print_lag(run: Path) -> None:
    """Say on stderr what planted faults cost, where run.json has it."""
    from reftrain.record.manifest import read_manifest

    lag = (read_manifest(run) or {}).get("lag")
    if lag is not None:
        click.echo(
            f"planted faults cost {lag['lag_ms']:.1f} of {lag['step_ms']:.1f} ms a step ({lag['lag_share']:.1%}), "
            "measured against the same run without them",
            err=True,
        )
