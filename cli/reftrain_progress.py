"""Progress of a training run on stderr."""

import click

from reftrain.hooks import Hooks, StepMetrics


class Progress(Hooks):
    """One line a step on stderr, from rank 0."""

    def step_end(self, metrics: StepMetrics) -> None:
        """Write step, loss, speed and, where the peak is known, MFU."""
        mfu = "" if metrics.mfu is None else f"  MFU {metrics.mfu:.1%}"
        click.echo(
            f"step {metrics.step}  loss {metrics.loss:.4f}  grad norm {metrics.grad_norm:.3g}  "
            f"{metrics.tokens_per_s:,.0f} tokens/s  {metrics.step_s:.2f} s{mfu}",
            err=True,
        )
