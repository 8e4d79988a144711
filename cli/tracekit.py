"""The program `tracekit`."""

from .program import Command, program, run


@program(
    Command(
        "slowrank",
        "tracekit_commands.slowrank",
        "Who is slow, where in DP → PP → CP → TP, why, and what it costs.",
    ),
    Command(
        "whatif", "tracekit_commands.whatif", "The step if a rank, stage, axis or operation were typical."
    ),
    Command(
        "breakdown",
        "tracekit_commands.breakdown",
        "Step time by compute, exposed communication, bubble, host, idle.",
    ),
    Command(
        "diff",
        "tracekit_commands.diff",
        "What takes longer in one run than in another: by part, rank and kernel.",
    ),
    Command(
        "trend",
        "tracekit_commands.trend",
        "How a job changes over its windows: drift, changes, ranks that get slower.",
    ),
    Command(
        "mesh", "tracekit_commands.mesh", "Which mesh the job runs on, and which process groups tell it."
    ),
    Command("hang", "tracekit_commands.hang", "Who never came, in which collective, host or device stalled."),
    Command("schema", "tracekit_commands.schema", "The JSON Schema of the answer of a command."),
    Command(
        "doctor",
        "tracekit_commands.doctor",
        "What this installation can do, and what to install for the rest.",
    ),
    Command(
        "open",
        "tracekit_commands.open_trace",
        "Finding and evidence in the viewer of ui.perfetto.dev.",
        "open_trace",
    ),
    Command(
        "ingest",
        "tracekit_commands.ingest",
        "Traces to a Parquet run folder that other commands read as well.",
    ),
)
def tracekit() -> None:
    """Find out why a distributed training job is slow or stuck.

    \b
    tracekit slowrank traces/
    tracekit hang dumps/
    """


def main() -> None:
    """Entry point of the console script."""
    run(tracekit)
