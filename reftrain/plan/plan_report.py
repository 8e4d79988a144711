"""A plan as JSON, as a table, and as a picture: time against memory of every mesh that has both."""

import html
from typing import Any

from reftrain.cost.hardware import GIB
from reftrain.layout_documents import ChoiceDocument, PlanDocument, RejectedDocument
from reftrain.plan.choose import Choice, Plan, Rejected
from reftrain.plan.meshes import Mesh
from reftrain.thresholds import LABELLED_MESHES, LARGE_BUBBLE, SHOWN_MESHES, TIE
from tracekit.axes import AXES


def mesh_text(mesh: Mesh) -> str:
    """`tp=8,cp=1,pp=16,dp=128`."""
    return ",".join(f"{axis}={size}" for axis, size in zip(AXES, mesh, strict=True))


def document(plan: Plan) -> PlanDocument:
    """The plan as `reftrain.plan/1`."""
    return {
        "schema": "reftrain.plan/1",
        "hardware": plan.hardware.name,
        "gpus": plan.workload.gpus,
        "sharding": plan.workload.sharding,
        "seq_len": plan.workload.seq_len,
        "sequences": plan.workload.sequences,
        "kernels": plan.taken.job.kernels,
        "taken": dict(zip(AXES, plan.taken.mesh, strict=True)),
        "warnings": warnings(plan),
        "choices": [_choice(choice, plan) for choice in plan.choices],
        "rejected": [_rejected(row) for row in plan.rejected],
    }


def warnings(plan: Plan) -> list[str]:
    """Return what is doubtful about the mesh taken: a tensor group beyond the node, a batch that starves the pipeline.

    Filling and draining over computing time is (p-1)/(m·v) ("Scaling Llama 3 Training", section 3.1).
    """
    found = []
    work, node = plan.workload, plan.hardware.node_size
    if plan.taken.job.mesh.tp > node:
        found.append(f"tp {plan.taken.job.mesh.tp} reaches beyond a node of {node} devices")
    job = plan.taken.job
    filling = (job.mesh.pp - 1) / (job.micro_batches * job.virtual)
    if filling > LARGE_BUBBLE:
        idle = f"the pipeline fills and drains for {100 * filling:.0f} % of its computing time"
        found.append(f"the batch of {work.sequences} sequences is small for {work.gpus} devices: {idle}")
    return found


def beyond_node(mesh: Mesh, plan: Plan) -> bool:
    """Return whether tensor-parallel groups of a mesh span nodes."""
    return mesh[0] > plan.hardware.node_size


def mfu(choice: Choice, plan: Plan) -> float:
    """Return the share of the devices' peak that model FLOPs reach."""
    return choice.tflops * 1e12 / plan.hardware.flops_per_s


def _choice(choice: Choice, plan: Plan) -> ChoiceDocument:
    projection, job = choice.projection, choice.job
    return {
        "mesh": dict(zip(AXES, choice.mesh, strict=True)),
        "schedule": job.schedule,
        "virtual_stages": job.virtual,
        "consecutive": job.consecutive,
        "micro_batches": job.micro_batches,
        "zero": job.mesh.zero,
        "recompute": job.recompute,
        "tflops_per_gpu": round(choice.tflops, 2),
        "mfu": round(mfu(choice, plan), 4),
        "step_s": round(projection.step_s, 6),
        "memory_gib": round(choice.memory_bytes / GIB, 3),
        "bubble": round(projection.bubble, 6),
        "exposed": {axis: round(share, 6) for axis, share in projection.exposed.items()},
        "network_gb": round(projection.network_bytes / 1e9, 3),
        "tie": choice.tie,
        "note": choice.note,
        "tp_beyond_node": beyond_node(choice.mesh, plan),
    }


def _rejected(row: Rejected) -> RejectedDocument:
    step = None if row.step_s is None else round(row.step_s, 6)
    return {"mesh": dict(zip(AXES, row.mesh, strict=True)), "reason": row.reason, "step_s": step}


def table(plan: Plan) -> str:
    """The plan as text: choices by time with the one to take marked, and how many other meshes fell why."""
    head = ("", "mesh", "schedule", "step s", "TFLOP/s", "MFU %", "GiB", "bubble", *AXES, "net GB", "")
    shown = plan.choices[:SHOWN_MESHES]
    shown += (plan.taken,) if plan.taken.mesh not in {c.mesh for c in shown} else ()
    rows = [head, *(_row(choice, plan) for choice in shown)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            c.ljust(w) if i in LEFT_COLUMNS else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    if len(plan.choices) > len(shown):
        lines.append(f"and {len(plan.choices) - len(shown)} slower ones")
    kernels = plan.taken.job.kernels
    lines += ["", f"> taken, = a tie with the fastest within {100 * TIE:.0f} %; memory of {kernels} kernels"]
    if any(beyond_node(choice.mesh, plan) for choice in shown):
        lines.append(f"! tp reaches beyond a node of {plan.hardware.node_size} devices")
    lines += [f"warning: {text}" for text in warnings(plan)]
    memory = sum("does not fit" in r.reason for r in plan.rejected)
    slower = sum(r.step_s is not None for r in plan.rejected)
    lines.append(
        f"{memory} meshes do not fit in memory, {len(plan.rejected) - memory - slower} do not suit the shapes, "
        f"{slower} more are slower; --json lists each with its reason"
    )
    return "\n".join(line.rstrip() for line in lines) + "\n"


LEFT_COLUMNS = (0, 1, 2, 13)
"""Columns of the text that begin at the left: marks, mesh, schedule, note."""


def _row(choice: Choice, plan: Plan) -> tuple[str, ...]:
    projection = choice.projection
    shares = (f"{100 * projection.exposed[axis]:.1f}%" for axis in AXES)
    mark = ">" if choice.mesh == plan.taken.mesh else "=" if choice.tie else ""
    return (
        mark + ("!" if beyond_node(choice.mesh, plan) else ""),
        mesh_text(choice.mesh),
        choice.schedule,
        f"{projection.step_s:.3f}",
        f"{choice.tflops:.0f}",
        f"{100 * mfu(choice, plan):.1f}",
        f"{choice.memory_bytes / GIB:.1f}",
        f"{100 * projection.bubble:.1f}%",
        *shares,
        f"{projection.network_bytes / 1e9:.1f}",
        choice.note,
    )


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 460, 70, 60, 50


def svg(plan: Plan) -> str:
    """The choices as points: memory to the right, projected step time upwards; the one taken is ringed."""
    usable = plan.hardware.usable_bytes / GIB
    times = [c.projection.step_s for c in plan.choices]
    low, high = min(times) * 0.98, max([*times, min(times) * 1.05]) * 1.02

    def x(gib: float) -> float:
        return LEFT + (WIDTH - LEFT - 40) * gib / (usable * 1.05)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (seconds - low) / (high - low)

    title = f"{plan.workload.gpus} x {plan.hardware.name}, {plan.workload.seq_len} tokens a sequence"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="14">{html.escape(title)}: projected step time and memory</text>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 30}" fill="none" stroke="black"/>',
        f'<path d="M{x(usable):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#b00" stroke-dasharray="4 3"/>',
        f'<text x="{x(usable) - 4:.1f}" y="{TOP - 6}" text-anchor="end" fill="#b00">usable memory</text>',
        f'<text x="{WIDTH - 30}" y="{HEIGHT - 16}" text-anchor="end">memory of the fullest rank, GiB</text>',
        f'<text x="{LEFT}" y="{TOP - 10}" text-anchor="end">step, s</text>',
    ]
    parts += _ticks(x, y, usable, low, high)
    for number, choice in enumerate(plan.choices):
        cx, cy = x(choice.memory_bytes / GIB), y(choice.projection.step_s)
        label = f"{mesh_text(choice.mesh)} {choice.schedule}: {choice.projection.step_s:.3f} s"
        parts.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="#1f6fb2"><title>{html.escape(label)}</title></circle>'
        )
        if choice.mesh == plan.taken.mesh:
            parts.append(
                f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="8" fill="none" stroke="#c60" stroke-width="2"/>'
            )
        if number < LABELLED_MESHES:
            parts.append(f'<text x="{cx + 10:.1f}" y="{cy + 4:.1f}">{"·".join(map(str, choice.mesh))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ticks(x: Any, y: Any, usable: float, low: float, high: float) -> list[str]:
    parts = []
    for i in range(6):
        gib, seconds = usable * i / 5, low + (high - low) * i / 5
        parts.append(
            f'<text x="{x(gib):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{gib:.0f}</text>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y(seconds) + 4:.1f}" text-anchor="end">{seconds:.2f}</text>')
    return parts
