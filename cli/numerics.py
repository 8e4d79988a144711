"""The program `numerics`."""

from .program import Command, program, run


@program(
    Command(
        "compare", "numerics_commands.compare", "Drift or bug: compares a run with a baseline, bit for bit."
    ),
    Command("replay", "numerics_commands.replay", "Repeats a run in one process, in its own order of sums."),
    Command(
        "plan",
        "numerics_commands.replay",
        "How two runs order their sums, and which tensors may differ by that.",
    ),
    Command(
        "ladder",
        "numerics_commands.ladder",
        "Drift or bug by the pair in BF16, FP32 and FP64: slope or plateau.",
    ),
    Command("advise", "numerics_commands.advise", "Which gradient buffers need FP32, and what that costs."),
    Command(
        "bisect",
        "numerics_commands.bisect",
        "The first step in which two runs part, then the tensor, in few runs.",
    ),
    Command("schema", "numerics_commands.schema", "The JSON Schema of the answer of a command."),
    Command("capture", "numerics_commands.capture", "Run a training command with capture switched on."),
)
def numerics() -> None:
    """Find out why a training run's numbers differ: the order of sums, or a bug.

    \b
    reftrain run --mesh tp=2,dp=2 --capture digest --out run_a
    reftrain run --mesh tp=1,dp=2 --capture digest --out run_b
    numerics compare --parallel run_a --baseline run_b
    """


def main() -> None:
    """Entry point of the console script."""
    run(numerics)
