"""The program `reftrain`."""

from .program import Command, program
from .program import run as run_program


@program(
    Command("run", "reftrain_commands.run", "Train with CONFIG.toml, flags going before it."),
    Command("demo", "reftrain_commands.demo", "Train a small model on sixteen processes, one of them slow."),
    Command(
        "faults",
        "reftrain_commands.faults",
        "List what `reftrain run --fault` can plant: slow, stuck, wrong.",
    ),
    Command(
        "schedule", "reftrain_commands.schedule", "Show a pipeline schedule: time line, bubbles and memory."
    ),
    Command("memory", "reftrain_commands.plan", "Show the memory of every pipeline rank of a run."),
    Command("plan", "reftrain_commands.plan", "Project every mesh for a model and a number of GPUs."),
    Command("calibrate", "reftrain_commands.plan", "Measure this machine, for `plan --hardware`."),
    Command("schema", "reftrain_commands.schema", "The JSON Schema of the answer of a command."),
    Command(
        "simulate",
        "reftrain_commands.simulate",
        "Simulate a job of up to 16 384 ranks and say where time goes.",
    ),
)
def reftrain() -> None:
    """Train a reference model on tensor, context, pipeline and data parallelism."""


def main() -> None:
    """Entry point of the console script."""
    run_program(reftrain)


if __name__ == "__main__":
    main()
