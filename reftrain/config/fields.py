"""Fields with a meaning, and checks of one field: every table of the configuration is made of them.

`config` and the hardware files of the simulator declare their fields with `setting`; the checks raise `ConfigError`
with the field's name as users write it.
"""

from dataclasses import field, fields
from typing import Any

from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_NUMBER


def setting(default: Any, meaning: str, least: float | None = None, most: float = LARGEST_NUMBER) -> Any:
    """Return a dataclass field that carries its unit, meaning and bounds (`reftrain run --help-all` shows them).

    least, most: of a number, or of each of several; every number of a run has them.
    """
    bounds = {} if least is None else {"least": least, "most": most}
    return field(default=default, metadata={"meaning": meaning, **bounds})


def check_bounds(table: str, config: Any) -> None:
    """Raise `ConfigError` when a number of a table lies outside the bounds of its field."""
    for known in fields(config):
        if "least" in known.metadata:
            least, most = known.metadata["least"], known.metadata["most"]
            value = getattr(config, known.name)
            for number in value if isinstance(value, tuple) else (value,):
                if not least <= number <= most:
                    raise ConfigError(
                        f"{table}.{known.name}",
                        f"{str(number)[:40]} is not within bounds",
                        f"give {least:.15g} to {most:.15g}",
                    )


def check_choice(table: str, config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise `ConfigError` when the named field is none of `choices`."""
    value = getattr(config, name)
    if value not in choices:
        raise ConfigError(f"{table}.{name}", f"{value!r} is unknown", f"choose among {', '.join(choices)}")
