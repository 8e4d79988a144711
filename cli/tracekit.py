"""The program `tracekit`."""

from .program import Command, program, run


@program(
    "tracekit_commands",
    {
        "Slow jobs": (
            Command(
                "slowrank",
                "slowrank",
                "Which rank is slow, where in DP → PP → CP → TP, why, and what it costs.",
            ),
            Command(
                "whatif",
                "whatif",
                "The step if a rank, stage, axis or operation were typical.",
            ),
            Command(
                "breakdown",
                "breakdown",
                "Step time by compute, exposed communication, bubble, host, idle.",
            ),
            Command(
                "floor",
                "floor",
                "What a step could take, from achieved FLOP/s up to the peak, part by part.",
            ),
            Command(
                "next",
                "next_probe",
                "A script that separates a slow device, host and link, without the job.",
                "next_probe",
            ),
            Command(
                "diff",
                "diff",
                "What takes longer in a second run, by part, rank and kernel.",
            ),
            Command(
                "trend",
                "trend",
                "How a job changes over its windows: drift, changes, ranks that get slower.",
            ),
            Command(
                "open",
                "open_trace",
                "Finding and evidence in the viewer of ui.perfetto.dev.",
                "open_trace",
            ),
        ),
        "Stuck jobs": (
            Command(
                "hang",
                "hang",
                "Which rank never came, in which collective, and whether host or device stalled.",
            ),
            Command(
                "triage",
                "triage",
                "One answer from whatever is left: logs, dumps, stacks, traces, archives.",
            ),
        ),
        "What was recorded": (
            Command(
                "mesh",
                "mesh",
                "Which mesh the job runs on, and which process groups show it.",
            ),
            Command(
                "ingest",
                "ingest",
                "Traces to a Parquet run folder that other commands read as well.",
            ),
        ),
        "This installation": (
            Command(
                "doctor",
                "doctor",
                "What this installation can do, and what to install for the rest.",
            ),
            Command("schema", "schema", "The JSON Schema of the answer of a command."),
        ),
    },
)
def tracekit() -> None:
    """Find out why a distributed training job is slow or stuck.

    \b
    tracekit slowrank traces/
    tracekit hang dumps/
    tracekit triage whatever_is_left/
    """


def main() -> None:
    """Entry point of the console script."""
    run(tracekit)
