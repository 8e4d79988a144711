"""`python -m tests.docs.causes`: writes docs/causes.md from the tables of causes and mechanisms."""

from tests.house.source import ROOT
from tracekit.causes import CAUSES

PAGE = ROOT / "docs" / "causes.md"
HEAD = """# Why a rank is slow

`tracekit slowrank` names a rank, a cause and, where the evidence separates them, a mechanism: what within the cause
takes the time. This page lists what each looks like, what excludes it, and what to do; the line `see` of an answer
names the section. It is written from `tracekit/causes.py` and `tracekit/mechanisms.py`, which the analysis and its
reports read (`python -m tests.docs.causes` writes it again).

A cause is named where it explains 80 % of a rank's excess or more. Otherwise the cause is `unknown`, and the two that
explain most are listed with their shares, what excludes each, and what to do for each (`suspects[].causes` in JSON).
The excess is own time beyond the peers' median. It splits into parts that do not overlap: gaps that spans explain, a
few long gaps, many short ones, waits for a turn on a core, copies, other compute, and on a CPU stops within operators.
A missing signal gives no part. What usual peers differ by may be chance: a cause must reach 80 % of the rest, and
exceed each other cause even if all of that chance is its own. Work that a rank alone runs explains its compute and the
gaps that belong to it.

A mechanism is named where it explains 80 % of the excess or more, and no other one explains half of it. Otherwise the
two that explain most are listed with their shares, and the advice is that of the cause, with what to record to decide.
Mechanisms of a device need a GPU. They split its excess into a part by one common factor and what single kinds of
kernels take beyond it. Those of a host need its events (`ProfilerActivity.CPU`), and split its pauses by the spans in
them. They never change which rank is named.

A pause without a span is a process that was stopped, or Python that ran between two operators: the garbage collector,
the interpreter's lock held by another thread, or code of the program. Operators (`aten::`) and calls of the runtime run
no Python, and a stop strikes at any moment. So pauses within operators exclude Python, and pauses that avoid operators
exclude a stop, where those fill so much of the host's time that chance explains it in fewer than 1 % of cases. Pauses
at one place of the program are its code there, or a collection that it starts. None of these three is named without a
span: a collection and any other Python look alike.
"""

ONE_STEP = """
## No cause: one long step, or the profiler

A step in which the program does something more is long without any fault. No rank is named for it. The excess of one
step that nothing of this explains is open, and more steps decide it.

| step | looks like | excluded by | do |
|---|---|---|---|
"""
NO_SIGN = "no other cause explains 80 % of the excess; the two that explain most are listed, each with a section here"
ROWS_OF_ONE_STEP = (
    (
        "evaluation or checkpoint of all ranks",
        (
            "collectives that the other steps lack make the step long on most ranks, and it is left out (`odd_steps`), "
            "unless it recurs three times; or all ranks work longer alike, so that none waits"
        ),
        "the same operations as in the other steps, and ranks that wait",
        "do it less often",
    ),
    (
        "evaluation or checkpoint of one rank",
        (
            "a span of the program or kernels fill most of the rank's excess, which neither its other steps nor its "
            "peers have; the reason names them"
        ),
        "a span of a data loader or of the garbage collector, or one that peers have as well: open, as it may recur",
        "save from another thread, and evaluate on all ranks",
    ),
    (
        "profiler that starts on one rank",
        "the first step of the window is longer before its first communication, and its kernels are not",
        "an excess in later steps",
        "begin to record on all ranks at one step",
    ),
    (
        "profiler with other settings on one rank",
        "the host is slow and only its trace holds stacks of Python; a row of `quality` says so (`unlike_recordings`)",
        "stacks on the peers as well, or a device that is slow",
        "record all ranks with the same settings",
    ),
    (
        "accident",
        "one operation is long, and three other steps show nothing",
        "several long operations: open, as they may recur",
        "record more steps",
    ),
)


def page() -> str:
    """The text of docs/causes.md."""
    parts = [HEAD]
    for cause in CAUSES.values():
        looks = "; ".join(sign.says for sign in cause.signs) or NO_SIGN
        why = (
            f"The suspect is slow because {cause.meaning}."
            if cause.signs
            else f"{cause.meaning.capitalize()}."
        )
        parts.append(
            f"\n## {cause.name}\n\n{why}\n\n"
            f"- **Looks like**: {looks}.\n- **Excluded by**: {cause.excluded_by}.\n- **Do**: {cause.next_step}.\n"
        )
        if cause.next_on_cpu:
            parts.append(f"- **Do on a CPU**: {cause.next_on_cpu}.\n")
        if cause.mechanisms:
            parts.append("\n| mechanism | looks like | excluded by | do |\n|---|---|---|---|\n")
            parts += [
                f"| `{m.name}` | {m.meaning} | {m.excluded_by} | {m.next_step} |\n" for m in cause.mechanisms
            ]
    return "".join([*parts, ONE_STEP, *(f"| {' | '.join(row)} |\n" for row in ROWS_OF_ONE_STEP)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
