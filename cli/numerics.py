"""The program `numerics`."""

from .program import Command, program, run


@program(
    "numerics_commands",
    {
        "Record": (Command("capture", "capture", "Run a training command with capture switched on."),),
        "Drift or bug": (
            Command(
                "compare",
                "compare",
                "Drift or bug: compares a run with a baseline, bit for bit.",
            ),
            Command(
                "replay",
                "replay",
                "Repeats a run in one process, in its own order of sums.",
            ),
            Command(
                "plan",
                "replay",
                "How two runs order their sums, and which tensors may differ for that reason.",
            ),
            Command(
                "ladder",
                "ladder",
                "Drift or bug by the pair in BF16, FP32 and FP64: slope or plateau.",
            ),
            Command(
                "bisect",
                "bisect",
                "The first step, then the tensor, in which two runs diverge, in few runs.",
            ),
        ),
        "Number formats": (
            Command("advise", "advise", "Which gradient buffers need FP32, and what that costs."),
        ),
        "This installation": (Command("schema", "schema", "The JSON Schema of the answer of a command."),),
    },
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
