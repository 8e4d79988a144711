"""`reftrain infer`: runs the trainer's model as an engine, or projects the layouts of one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.thresholds import MOST_DEVICES, MOST_TOKENS, WIDEST

from ..completion import fault, one_of, presets
from ..output import A_FILE, JSON, emit
from .run_settings import tables_of

WRONG = ("position", "stale", "scale")


@click.command()
@click.argument("config", required=False, type=A_FILE)
@click.option("--preset", shell_complete=one_of(presets), help="Model preset, e.g. tiny, 8b or llama2_70b.")
@click.option("--mesh", help="Tensor ranks and replicas, e.g. tp=2,dp=2.")
@click.option("--requests", type=click.IntRange(1, WIDEST), default=8, show_default=True, help="Requests.")
@click.option(
    "--prompt", type=click.IntRange(1, MOST_TOKENS), default=16, show_default=True, help="Longest prompt."
)
@click.option(
    "--generate", type=click.IntRange(1, MOST_TOKENS), default=8, show_default=True, help="Tokens after it."
)
@click.option(
    "--slots",
    type=click.IntRange(1, WIDEST),
    default=4,
    show_default=True,
    help="Requests at once, a replica.",
)
@click.option(
    "--forced",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="RUN",
    help="Take the answers of an earlier run, not the likeliest tokens.",
)
@click.option("--whole", is_flag=True, help="One forward of the whole sequences of --forced, as in training.")
@click.option("--resume", help="Checkpoint to take the weights from; else those of run.seed.")
@click.option("--out", help="Folder for tokens, times and traces.")
@click.option("--trace", is_flag=True, help="Trace all steps but the first with the profiler.")
@click.option(
    "--capture",
    type=click.Choice(["digest", "tensors"]),
    help="Record forwards for numerics compare; one rank.",
)
@click.option(
    "--compute", type=click.Choice(["real", "emulated"]), help="Compute, or sleep each segment's time."
)
@click.option("--fault", "faults", multiple=True, shell_complete=fault, help="Planted slow rank; repeatable.")
@click.option("--wrong", type=click.Choice(WRONG), help="Plant a wrong engine.")
@click.option(
    "--set", "settings", multiple=True, metavar="TABLE.FIELD=VALUE", help="Set any field of run; repeatable."
)
@click.option(
    "--devices", type=click.IntRange(1, MOST_DEVICES), help="Run nothing: project all layouts of so many."
)
@click.option(
    "--hardware", default="h100", show_default=True, help="With --devices: a known machine, or a .toml file."
)
@click.option(
    "--weight-bytes", type=click.IntRange(1, 4), default=2, show_default=True, help="With --devices."
)
@JSON
def infer(config: Path | None, *, devices: int | None, json_to: str | None, **flags: Any) -> None:
    """Prefill and decode with a cache of keys and values, on tensor ranks and replicas of this machine.

    With --devices it runs nothing and prints latency, throughput and memory of every layout of that many.
    """
    loaded = _configuration(config, flags)
    if devices is not None:
        _project(loaded, devices, flags, json_to)
        return
    import json

    from reftrain.infer.engine import Workload
    from reftrain.infer.report import answers_of, document, text
    from reftrain.infer.serve import serve

    sizes = {name: flags[name] for name in ("requests", "prompt", "generate", "slots", "whole")}
    forced = answers_of(flags["forced"]) if flags["forced"] else ()
    work = Workload(**sizes, forced=forced, wrong=flags["wrong"] or "")
    made = serve(loaded, work, flags["capture"] or "", traced=flags["trace"])
    found = document(made)
    emit(text(found), lambda: json.dumps(found) + "\n", json_to)


def _project(config: RunConfig, devices: int, flags: dict[str, Any], json_to: str | None) -> None:
    import json

    from reftrain.cost.hardware import load_hardware
    from reftrain.infer.projection import Serving, layouts, project, projection_document, table

    hardware = load_hardware(flags["hardware"])
    sizes = (flags[name] for name in ("requests", "prompt", "generate", "weight_bytes"))
    asked = Serving(config.model, devices, *sizes)
    found = [project(asked, layout, hardware) for layout in layouts(asked)]
    if not found:
        problem = f"no layout of {devices} devices suits the heads and {asked.batch} requests"
        raise ConfigError("--devices", problem, "give a number with more divisors, or more --requests")
    emit(
        table(found, asked, hardware),
        lambda: json.dumps(projection_document(found, asked, hardware)) + "\n",
        json_to,
    )


def _configuration(config: Path | None, flags: dict[str, Any]) -> RunConfig:
    """Return the run's configuration; its batch, which no engine has, follows the replicas."""
    from reftrain.config.file import load

    tables = tables_of(flags["preset"], flags["mesh"], flags["settings"])
    given: Sequence[tuple[str, str, object]] = (
        ("run", "out", flags["out"]),
        ("run", "compute", flags["compute"]),
        ("checkpoint", "resume", flags["resume"]),
        ("evidence", "faults", list(flags["faults"]) or None),
    )
    for table, name, value in given:
        if value is not None:
            tables.setdefault(table, {})[name] = value
    tables.setdefault("mesh", {}).setdefault("sequence_parallel", False)  # decoding has one token to split
    replicas = tables["mesh"].get("dp", 1)
    tables.setdefault("data", {}).setdefault("batch_size", replicas)
    tables["data"].setdefault("micro_batch_size", 1)
    return load(config, tables)
