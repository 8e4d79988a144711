"""Damaged inputs that other commands of `tracekit` than the reader's own take, with all forms of answers."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from shutil import copytree

from tracekit_cli.tracekit import tracekit

from tests.fuzz.readers import TRACEKIT, Damage, Input, kept

ODD = 0.1
"""Share of inputs whose files have names that are no UTF-8 and hold control characters."""
COMMANDS = (
    ("whatif", "--json", "-"),
    ("breakdown", "--json", "-"),
    ("floor", "--json", "-"),
    ("floor", "--html", "{}/page.html"),
    ("trend", "--json", "-"),
    ("mesh", "--json", "-"),
    ("mesh", "--html", "{}/page.html"),
    ("triage", "--json", "-"),
    ("triage", "--html", "{}/page.html"),
    ("slowrank", "--verbose"),
    ("slowrank", "--explain", "--json", "-"),
    ("slowrank", "--explain", "--html", "{}/page.html"),
    ("slowrank", "--markdown", "-"),
    ("slowrank", "--html", "{}/page.html"),
    ("slowrank", "--perfetto", "{}/trace.pftrace"),
    ("slowrank", "--prometheus", "{}/metrics.prom"),
    ("ingest", "--out", "{}/kept"),
    ("append",),  # to a run of other traces
    ("diff",),
)
HANG = (
    ("triage", "--json", "-"),
    ("triage", "--verbose"),
    ("hang", "--verbose"),
    ("hang", "--markdown", "-"),
    ("hang", "--html", "{}/page.html"),
    ("hang", "--prometheus", "{}/metrics.prom"),
)


def other_command(rng: Random, folder: Path) -> Input:
    """An input of one of the readers, for another command; names of files are odd now and then."""
    place = folder / "in"
    place.mkdir()
    name = rng.choice([n for n in TRACEKIT if n != "job"])
    given = TRACEKIT[name](rng, place)
    if name != "run folder" and rng.random() < ODD:
        for path in [p for p in place.rglob("*") if p.is_file() and p.name != "run.json"]:
            path.rename(path.with_name(f"\udcff\x1b[31m\n{path.name}"))
    command, *options = (told.format(folder) for told in rng.choice(HANG if name == "dumps" else COMMANDS))
    inputs = [a for a in given.arguments if not a.startswith("-")][:1]
    if command == "append":
        command, options = "ingest", ["--out", str(folder / "kept"), "--append"]
        copytree(kept(), folder / "kept")
    if command == "diff":
        inputs = [str(kept()), *inputs]
    return Input(tracekit, [command, *inputs, *options, "--quiet"])


COMMANDS_OF: Mapping[str, Damage] = {"other command": other_command}
