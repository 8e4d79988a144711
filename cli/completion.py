"""What a shell may complete as the value of an option: words, lists of them joined by commas, and planted faults."""

from collections.abc import Callable, Iterable, Sequence

import click

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def one_of(words: Callable[[], Iterable[str]]) -> Complete:
    """Return the completion of an option that takes one of `words`, which are asked for when a shell asks."""

    def complete(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
        return [word for word in words() if word.startswith(begun)]

    return complete


def several_of(words: Sequence[str]) -> Complete:
    """Return the completion of an option that takes some of `words`, joined by commas."""

    def complete(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
        before, comma, last = begun.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last) and word not in given]

    return complete


def presets() -> Iterable[str]:
    """Return the names of model presets."""
    from reftrain.config.presets import MODEL_PRESETS

    return MODEL_PRESETS


def machines() -> Iterable[str]:
    """Return the names of known hardware."""
    from reftrain.cost.hardware import known_hardware

    return known_hardware()


def fields_of_runs() -> Iterable[str]:
    """Return `table.field=` of every field of a configuration."""
    from reftrain.config.file import known_fields

    return (f"{table}.{name}=" for table, names in known_fields().items() for name in names)


def schedules() -> Iterable[str]:
    """Return the names of pipeline schedules."""
    from reftrain.schedule.registry import SCHEMES

    return SCHEMES


def figures() -> Iterable[str]:
    """Return the names of the papers' figures."""
    from reftrain.papers.registry import FIGURES

    return FIGURES


def fault(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return how a planted fault goes on: its kind, then `name=` of each field that is not given yet."""
    from reftrain.config.fault_kinds import FAULT_KINDS
    from reftrain.config.fault_spec import fields_of

    kind, colon, rest = begun.partition(":")
    if not colon:
        return [f"{name}:" for name in FAULT_KINDS if name.startswith(kind)]
    before, comma, last = rest.rpartition(",")
    given = {part.partition("=")[0] for part in before.split(",")}
    fields = fields_of(kind) if kind in FAULT_KINDS else ()
    return [
        f"{kind}:{before}{comma}{name}=" for name in fields if name.startswith(last) and name not in given
    ]
