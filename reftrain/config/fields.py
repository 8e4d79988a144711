"""Fields with a meaning, and checks of one field: every table of the configuration is made of them.

`config` and the hardware files of the simulator declare their fields with `setting`; the checks raise `ConfigError`
with the field's name as users write it.
"""

from dataclasses import field
from typing import Any

from reftrain.errors import ConfigError


def setting(default: Any, meaning: str) -> Any:
    """Return a dataclass field that carries its unit and meaning (`reftrain run --help` shows them)."""
    return field(default=default, metadata={"meaning": meaning})


def check_at_least(table: str, config: Any, least: float, *names: str) -> None:
    """Raise `ConfigError` when one of the named fields is below `least`."""
    for name in names:
        if getattr(config, name) < least:
            raise ConfigError(
                f"{table}.{name}", f"{getattr(config, name)} is below {least}", f"give {least} or more"
            )


def check_at_most(table: str, config: Any, most: float, *names: str) -> None:
    """Raise `ConfigError` when one of the named fields is above `most`."""
    for name in names:
        if getattr(config, name) > most:
            raise ConfigError(
                f"{table}.{name}", f"{getattr(config, name)} is above {most}", f"give {most} or less"
            )


def check_choice(table: str, config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise `ConfigError` when the named field is none of `choices`."""
    value = getattr(config, name)
    if value not in choices:
        raise ConfigError(f"{table}.{name}", f"{value!r} is unknown", f"choose among {', '.join(choices)}")
