"""A recipe: stages of one training, each a configuration of its own that goes on from the checkpoint before.

A recipe's file holds the tables of a run, which all stages share, `[recipe]`, and a `[[stage]]` for each stage with its
`name`, its `steps`, whether it `anneal`s the learning rate, and the tables in which it differs: mesh, data, pipeline.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reftrain.config.file import from_file_tables, only_tables, read_document
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.thresholds import MOST_STAGES, MOST_STEPS

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OWN: Final = {"name": str, "steps": int, "anneal": bool}
_FIXED: Final = {
    "model": "the checkpoint before is of another model",
    "checkpoint": "stages hand over checkpoints",
}


@dataclass(frozen=True)
class Stage:
    """One stage: `config.steps` is its last step's number plus one, `first` its first step's number."""

    name: str
    first: int
    config: RunConfig

    @property
    def steps(self) -> int:
        """Steps of the stage itself."""
        return self.config.steps - self.first

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.config.data.batch_size * self.config.data.seq_len


@dataclass(frozen=True)
class Recipe:
    """Stages in their order; of the last `average` checkpoints of the last stage the weights are averaged, 0: none."""

    stages: tuple[Stage, ...]
    average: int


def load_recipe(path: Path, overrides: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Read a recipe; `overrides` go before its shared tables, and the tables of a stage before both.

    Raises `ConfigError` naming the file, the stage, the field and the remedy.
    """
    try:
        return _read(path, overrides)
    except ConfigError as error:
        if error.field.startswith(str(path)):
            raise
        raise ConfigError(f"{path}: {error.field}", error.problem, error.remedy) from error


def _read(path: Path, overrides: Mapping[str, Mapping[str, Any]]) -> Recipe:
    document = read_document(path)
    listed, own = document.pop("stage", None), document.pop("recipe", {})
    if not isinstance(listed, list) or not listed or not all(isinstance(row, dict) for row in listed):
        raise ConfigError("stage", "lists no stages", "write [[stage]] with name and steps, once for each")
    if len(listed) > MOST_STAGES:
        raise ConfigError("stage", f"{len(listed)} stages are too many", f"give {MOST_STAGES} or fewer")
    if not isinstance(own, dict) or set(own) - {"average"}:
        raise ConfigError("recipe", "holds an unknown field", "it takes average")
    average = _whole("recipe.average", own.get("average", 0), 0)
    only_tables(document)
    total = sum(_whole("stage.steps", row.get("steps"), 1) for row in listed if not row.get("anneal"))
    stages: list[Stage] = []
    for number, row in enumerate(listed):
        stages.append(_stage(number, row, document, overrides, stages, total))
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise ConfigError("stage.name", "two stages have one name", "give each a name of its own")
    return Recipe(tuple(stages), average)


def _whole(field: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_STEPS:
        raise ConfigError(field, f"{str(value)[:40]} is not a count", f"give {least} to {MOST_STEPS}")
    return value


def _stage(
    number: int,
    row: Mapping[str, Any],
    shared: Mapping[str, Any],
    overrides: Mapping[str, Mapping[str, Any]],
    before: list[Stage],
    total: int,
) -> Stage:
    """Build one stage: its tables, its place in the steps, the data and the rates of the whole recipe."""
    name = row.get("name", f"stage{number + 1}")
    where = f"stage {str(name)[:40]!r}"
    _check_own(where, {"name": name, **row})
    tables = {key: value for key, value in row.items() if key not in _OWN}
    for table, why in _FIXED.items():
        if table in tables and (table == "checkpoint" or number):
            raise ConfigError(
                f"{where}: {table}", f"cannot differ by stage: {why}", "write it for all stages"
            )
    if any(not isinstance(table, dict) for table in tables.values()):
        raise ConfigError(
            where, "holds a field outside a table", f"write it under [stage.data], beside {', '.join(_OWN)}"
        )
    first = before[-1].config.steps if before else 0
    steps = _whole(f"{where}: steps", row.get("steps"), 1)
    merged = _merged(shared, overrides, tables)
    merged.setdefault("run", {})["steps"] = first + steps
    rates = merged.setdefault("optimizer", {})
    rates.setdefault("decay_steps", total)
    if row.get("anneal"):
        rates.update(anneal_from=first, anneal_steps=steps)
    try:
        config = from_file_tables(merged)
        read = sum(stage.steps * stage.tokens for stage in before)
        merged.setdefault("data", {})["offset"] = _offset(config, first, read)
        return Stage(name, first, from_file_tables(merged))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.field}", error.problem, error.remedy) from error


def _check_own(where: str, row: Mapping[str, Any]) -> None:
    """Refuse values of another type, and a name that is no folder's."""
    for field, kind in _OWN.items():
        if field in row and not isinstance(row[field], kind):
            raise ConfigError(
                f"{where}: {field}", f"{str(row[field])[:40]!r} has the wrong type", "correct it"
            )
    if not _NAME.fullmatch(row["name"]):
        raise ConfigError(f"{where}: name", "is no name of a folder", "use letters, digits, - and _")


def _merged(*sources: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for source in sources:
        for table, values in source.items():
            found.setdefault(table, {}).update(values)
    return found


def _offset(config: RunConfig, first: int, read: int) -> int:
    """Return what lets the first step begin after the `read` tokens of the stages before."""
    if read % config.data.seq_len:
        raise ConfigError(
            "data.seq_len",
            f"{read} tokens of the stages before are no whole number of sequences of {config.data.seq_len}",
            "choose a length that divides them, or other steps before",
        )
    return read // config.data.seq_len - first * config.data.batch_size
