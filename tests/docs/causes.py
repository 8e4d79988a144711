"""`python -m tests.docs.causes`: writes docs/causes.md from the tables of causes and mechanisms."""

from tests.house.source import ROOT
from tracekit.causes import CAUSES

PAGE = ROOT / "docs" / "causes.md"
HEAD = """# Why a rank is slow

`tracekit slowrank` names a rank, a cause and, where the evidence separates them, a mechanism: what within the cause
takes the time. This page lists what each looks like, what excludes it, and what to do. It is written from
`tracekit/causes.py` and `tracekit/mechanisms.py`, which the analysis and its reports read (`python -m
tests.docs.causes` writes it again).

A mechanism is named where it explains 80 % of the excess or more, and no other one explains half of it. Otherwise the
two that explain most are listed with their shares, and the advice is that of the cause. Mechanisms need a GPU; those
of a host need its events (`ProfilerActivity.CPU`). They split the excess of the device into a part by one common
factor and what single kinds of kernels take beyond it, and the gaps of a paused host by the spans in them. They never
change which rank is named.
"""


def page() -> str:
    """The text of docs/causes.md."""
    parts = [HEAD]
    for cause in CAUSES.values():
        if cause.name == "unknown":
            continue
        looks = "; ".join(sign.says for sign in cause.signs)
        parts.append(
            f"\n## {cause.name}\n\nThe suspect is slow because {cause.meaning}.\n\n"
            f"- **Looks like**: {looks}.\n- **Excluded by**: {cause.excluded_by}.\n- **Do**: {cause.next_step}.\n"
        )
        if cause.next_on_cpu:
            parts.append(f"- **Do on a CPU**: {cause.next_on_cpu}.\n")
        if cause.mechanisms:
            parts.append("\n| mechanism | looks like | excluded by | do |\n|---|---|---|---|\n")
            parts += [
                f"| `{m.name}` | {m.meaning} | {m.excluded_by} | {m.next_step} |\n" for m in cause.mechanisms
            ]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
