"""The program `numerics`."""

import click

from .numerics_advise import advise
from .numerics_capture import capture
from .numerics_compare import compare
from .numerics_ladder import ladder
from .numerics_replay import plan, replay
from .output import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tracekit4d")
def numerics() -> None:
    """Find out why a training run's numbers differ: the order of sums, or a bug.

    \b
    reftrain run --mesh tp=2,dp=2 --capture digest --out run_a
    reftrain run --mesh tp=1,dp=2 --capture digest --out run_b
    numerics compare --parallel run_a --baseline run_b
    """


numerics.add_command(compare)
numerics.add_command(capture)
numerics.add_command(ladder)
numerics.add_command(replay)
numerics.add_command(plan)
numerics.add_command(advise)


def main() -> None:
    """Entry point of the console script."""
    run("numerics", numerics)
