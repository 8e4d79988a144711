"""The text of `reftrain simulate`: figures of the step, and a row for each pipeline rank."""

from reftrain.documents import FaultDocument
from reftrain.simulate.pipeline_rank import WAITS
from reftrain.simulate.run_folder import Outcome, Written
from reftrain.simulate.summary import tflops_per_gpu
from reftrain.thresholds import SHOWN_STAGES


def outcome_text(outcome: Outcome) -> str:
    """Return the answer as text."""
    setup, summary, simulation = outcome.setup, outcome.summary, outcome.simulation
    sizes = ", ".join(f"{axis} {simulation.grid.sizes[axis]}" for axis in simulation.grid.order)
    how = f"{setup.schedule.name}, {setup.schedule.micro_batches} micro-batches, {setup.hardware.name}"
    lines = [f"{simulation.grid.world} ranks ({sizes}), {how}"]
    if outcome.hang:
        lines.append(f"the job hangs in step {outcome.hang.first}: {_fault(outcome.hang.to_json())}")
    if not summary.step_ms:
        return "\n".join([*lines, "no step is whole", *_written(outcome)]) + "\n"
    lines.append(
        f"step       {summary.mean_step_ms:.1f} ms, "
        f"{tflops_per_gpu(setup.job, summary.mean_step_ms):.0f} TFLOP/s a device"
    )
    if outcome.slowdown and outcome.healthy:
        lines.append(
            f"planted    {'; '.join(_fault(f.to_json()) for f in setup.faults)}: {outcome.slowdown:.3f} times "
            f"the {outcome.healthy.mean_step_ms:.1f} ms without"
        )
    if setup.window.count > 1:
        window, least, most = setup.window, min(summary.step_ms), max(summary.step_ms)
        lines.append(
            f"windows    {window.count}, {window.apart_s / 3600:g} h apart; steps of {least:.1f} to {most:.1f} ms"
        )
    exposed = ", ".join(f"{axis} {share:.1%}" for axis, share in summary.exposed.items())
    lines += [
        f"bubble     {summary.bubble_ratio:.1%} of the step, {summary.bubble_over_compute:.1%} over compute",
        f"exposed    {exposed}; waiting for the host {summary.host_share:.1%}",
        *_stages(outcome),
        *_written(outcome),
    ]
    return "\n".join(lines) + "\n"


def _stages(outcome: Outcome) -> list[str]:
    stages = outcome.summary.stages
    rows = ["ms a step  pipeline rank   compute   bubble       tp       cp       dp       pp     host"]
    for number, stage in enumerate(stages[:SHOWN_STAGES]):
        waits = stage.waits_ms
        bubble = waits["bubble"] + waits["world"]
        parts = [
            stage.compute_ms,
            bubble,
            *(waits[name] for name in WAITS if name not in {"bubble", "world"}),
        ]
        rows.append(f"           {number:13d} " + " ".join(f"{part:8.1f}" for part in parts).rjust(62))
    if len(stages) > SHOWN_STAGES:
        rows.append(f"           … {len(stages) - SHOWN_STAGES} more, see --json")
    return rows


def _fault(values: FaultDocument) -> str:
    rest = ",".join(
        f"{name}={value}" for name, value in values.items() if name != "kind" and value is not None
    )
    return f"{values['kind']}:{rest}"


def _written(outcome: Outcome) -> list[str]:
    rows = []
    for name, written in (("traces", outcome.traces), ("dumps", outcome.dumps)):
        if isinstance(written, Written):
            rows.append(
                f"{name:10s} {written.files} files, {written.events} events, {written.size / 1e6:.1f} MB"
            )
    return rows
