"""Puts the values of several options into one object, so that commands pass on what belongs together."""

from collections.abc import Callable
from dataclasses import Field, fields
from functools import wraps
from typing import Any, ClassVar, Protocol

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


class Packed(Protocol):
    """A dataclass with the names of options as fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def packed(name: str, kind: type[Packed], *options: Decorator) -> Decorator:
    """Decorate a command with `options`; it takes their values as one `kind` called `name`, the rest keep defaults."""
    names = [field.name for field in fields(kind)]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def taking(**values: Any) -> Any:
            return command(**{name: kind(**{n: values.pop(n) for n in names if n in values})}, **values)

        return applied(taking, options)

    return decorate


def applied(command: Command, options: tuple[Decorator, ...]) -> Command:
    """The command with its options, which its help lists in the order given."""
    for option in reversed(options):
        command = option(command)
    return command
