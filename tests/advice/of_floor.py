"""What `tracekit floor` is refused for, and what the refusals advise."""

import json
from pathlib import Path

from tracekit_cli.reftrain_commands.plan import plan

from tests.advice.cases import command
from tests.advice.register import Call, calls, case
from tests.floor.jobs import alike
from tracekit.analysis.floor.analyse import floor
from tracekit.analysis.floor.given import Given, parse_model, parse_peak, read_plan

PLAN = "--preset 8b --gpus 8 --tokens 1M --seq 8192 --json"

calls("TFLOP/s are beyond any device; correct", parse_peak, "peak_tflops=1e20", "peak_tflops=989")
calls("must be a number above 0, as in 989", parse_peak, "peak_tflops=0", "peak_tflops=989")
calls("--model: attention needs", parse_model, "parameters=8e9,tokens=4M,seq=8K", "parameters=8e9,tokens=4M")
calls("--model: flops is the whole step", parse_model, "flops=1e15,tokens=4M", "flops=1e15")
calls(
    "FLOPs a step are beyond any machine",
    parse_model,
    "parameters=1e29,tokens=4M",
    "parameters=8e9,tokens=4M",
)


@case("FLOPs and peak must be numbers above 0")
def _(folder, _patch):
    job = alike(folder)
    return lambda: floor(job, flops=-1.0), lambda: floor(job, flops=1e9)


@case("need longer at this peak than the ranks computed")
def _(folder, _patch):
    job = alike(folder)
    return lambda: floor(job, flops=1e20, peak_tflops=1.0), lambda: floor(job, flops=1e6, peak_tflops=1.0)


def planned(folder: Path) -> Path:
    """The file that `reftrain plan` itself writes."""
    command(plan, "", f"{PLAN} {folder / 'plan.json'}")[1]()
    return folder / "plan.json"


def plan_case(part: str, text: str) -> None:
    """Enter a case of a file that is no plan; the advice is to write one."""

    def walked(folder: Path, _patch: object) -> tuple[Call, Call]:
        (folder / "wrong.json").write_text(text)
        return lambda: read_plan(str(folder / "wrong.json")), lambda: read_plan(str(planned(folder)))

    case(part)(walked)


plan_case("--plan {}: not JSON", "{")
plan_case("--plan {}: not an answer of reftrain plan", "{}")
plan_case("the plan holds no choice with mesh", json.dumps({"schema": "reftrain.plan/1", "choices": []}))


@case("--plan: {}; run reftrain plan --gpus {}")
def _(folder, _patch):
    found = read_plan(str(planned(folder)))
    return lambda: Given(plan=found).check(3), lambda: Given(plan=found).check(8)
