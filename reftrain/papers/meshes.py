"""Published meshes beside the planner's choices for the same devices, tokens and lengths.

Source: "The Llama 3 Herd of Models", table 4, and "Scaling Llama 3 Training" (ISCA'25), table 2.
"""

from reftrain.cost.hardware import Hardware
from reftrain.papers.figure import Line
from reftrain.papers.llama3 import CALIBRATION, LLAMA_405B, PREDICTED, TOKENS
from reftrain.plan.choose import Planner
from reftrain.plan.meshes import Workload
from tracekit.axes import AXES


def meshes(hardware: Hardware) -> list[Line]:
    """Return the sizes of all axes of each published run, and how far its mesh is behind the fastest projected."""
    why = (
        "the published mesh ties with the one taken; of a tie the rule takes fewest axes, then least traffic through "
        "the network ports, and with half of the devices even 32 pipeline ranks are filled"
    )
    lines = []
    for row in (*PREDICTED, CALIBRATION):
        plan = Planner(Workload(LLAMA_405B, row.gpus, row.seq_len, TOKENS // row.seq_len), hardware).plan()
        published = row.tp, row.cp, row.pp, row.dp
        for axis, theirs, ours in zip(AXES, published, plan.taken.mesh, strict=True):
            lines.append(Line(f"{row.name}: {axis}", "", theirs, ours, why="" if theirs == ours else why))
        fastest = plan.choices[0].projection.step_s
        (same,) = (choice for choice in plan.choices if choice.mesh == published)
        behind = 100 * (same.projection.step_s / fastest - 1)
        lines.append(Line(f"{row.name}: published mesh behind the fastest", "% of time", None, behind))
    return lines
