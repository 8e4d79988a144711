"""The program `reftrain`."""

from .program import Command, program
from .program import run as run_program


@program(
    "reftrain_commands",
    {
        "Run": (
            Command("run", "run", "Train the model that CONFIG.toml describes; flags override it."),
            Command(
                "demo",
                "demo",
                "Train a small model on sixteen processes, one of them slow.",
            ),
            Command("infer", "infer", "Serve the model: prefill, decode, and what layouts cost."),
            Command(
                "faults",
                "faults",
                "List what `reftrain run --fault` can plant: slow, stuck, wrong.",
            ),
        ),
        "Plan and simulate": (
            Command("plan", "plan", "Project every mesh for a model and a number of GPUs."),
            Command("memory", "plan", "Show the memory of every pipeline rank of a run."),
            Command(
                "schedule",
                "schedule",
                "Show a pipeline schedule: time line, bubbles and memory.",
            ),
            Command(
                "simulate",
                "simulate",
                "Simulate a job of up to 16 384 ranks and say where time goes.",
            ),
            Command(
                "goodput",
                "goodput",
                "Estimate the share of a long job spent training, and how often to checkpoint.",
            ),
            Command(
                "reproduce",
                "reproduce",
                "Print the papers' figures beside ours, with the deviation and its reason.",
            ),
            Command(
                "server",
                "server",
                "Compare a parameter server with bounded staleness with synchronous steps.",
            ),
            Command("calibrate", "plan", "Measure this machine, for `plan --hardware`."),
        ),
        "This installation": (Command("schema", "schema", "The JSON Schema of the answer of a command."),),
    },
)
def reftrain() -> None:
    """Train a reference model on tensor, context, pipeline and data parallelism."""


def main() -> None:
    """Entry point of the console script."""
    run_program(reftrain)


if __name__ == "__main__":
    main()
