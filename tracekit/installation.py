"""What this installation has: its packages beside those it asks for, by extra, and folders it writes into.

A command that needs an extra says so by `check_extra` before any work. Where an import fails all the same, the programs
ask `missing_extra`, so that a package that is not installed is never reported as a fault.
"""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tracekit.errors import MissingExtraError
from tracekit.own_files import unwritable

DISTRIBUTION: Final = "tracekit4d"
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)(\[[\w,-]+\])?\s*(>=\s*(?P<least>[\d.]+))?[^;]*(;.*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"])?"
)

_MODULES: Final = {"traceinsight": "hta", "mlflow-skinny": "mlflow"}
"""Modules with names that differ from their packages' names in more than `_` for `-`."""
_BROUGHT_BY: Final = {"llvmlite": "numba"}
"""Modules that a package of an extra brings along, and that are imported by their own names."""


@dataclass(frozen=True)
class Package:
    """A package that is asked for: the least version that serves, and the one installed, None where none is.

    extra: the extra that asks for it; empty where nothing works without it.
    """

    name: str
    least: str
    installed: str | None
    extra: str

    @property
    def module(self) -> str:
        """The name under which it is imported."""
        return _MODULES.get(self.name, self.name.replace("-", "_"))

    @property
    def serves(self) -> bool:
        """True if it is installed, and as new as asked for."""
        return self.installed is not None and _numbers(self.installed) >= _numbers(self.least)


def packages() -> list[Package]:
    """Every package that the distribution asks for, those without an extra first, by extra and name."""
    from importlib.metadata import requires  # 25 ms, which no answer needs

    found = []
    for text in requires(DISTRIBUTION) or ():
        match = _REQUIREMENT.match(text)
        if match:
            name = match["name"]
            found.append(Package(name, match["least"] or "0", _installed(name), match["extra"] or ""))
    return sorted(found, key=lambda p: (p.extra, p.name.lower()))


def by_extra(found: Sequence[Package]) -> dict[str, list[Package]]:
    """Return the packages of each extra; under the empty name, the packages that everything needs."""
    extras = sorted({p.extra for p in found})
    return {extra: [p for p in found if p.extra == extra] for extra in extras}


def check_extra(extra: str, what: str) -> None:
    """Raise MissingExtraError where a package of an extra, which `what` needs, is missing; it says what to install."""
    modules = [p.module for p in packages() if p.extra == extra]
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise MissingExtraError(f"{what} needs {names}, not installed; pip install '{DISTRIBUTION}[{extra}]'")


def missing_extra(error: ImportError, what: str) -> MissingExtraError | None:
    """Return the refusal where `what` failed to import a package of an extra; None for other imports that fail."""
    name = (error.name or "").partition(".")[0]
    name = _BROUGHT_BY.get(name, name)
    package = next((p for p in packages() if p.extra and p.module == name), None) if name else None
    if package is None:
        return None
    there = find_spec(name) is not None
    if there and package.serves:
        return None
    have = "not installed"
    if there:
        have = (
            f"{package.installed} is here" if package.installed else f"the {name} of another package is here"
        )
    remedy = f"pip install '{DISTRIBUTION}[{package.extra}]'"
    return MissingExtraError(f"{what} needs {package.name} {package.least} or newer, {have}; {remedy}")


def temporary_folder() -> tuple[Path, str | None]:
    """Return the folder of temporary files, and why it cannot be written to, or None."""
    folder = Path(tempfile.gettempdir())
    return folder, unwritable(folder)


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, without zeros at their end: (2, 4, 6) of `2.4.6rc1`."""
    numbers = [int(n) for n in re.findall(r"\d+", re.split(r"[^\d.]", text)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
