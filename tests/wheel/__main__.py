"""`python -m tests.wheel`: the wheel with extras in fresh environments, for each Python found and each set of versions.

Sets: `latest`, `pandas2` (all newest but pandas 2), `lowest` (every lower bound of pyproject.toml, exactly; only for
the oldest Python, because newer ones have no builds of so old packages). Before these, help of all commands in every
combination of extras (`extras.py`). Needs the package registry.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from itertools import combinations
from pathlib import Path

from tests.house.source import ROOT
from tests.wheel.extras import MODULES, ends_of_each, helps

EXTRAS = ("hta", "report", "perfetto", "ray")
PYTHONS = ("3.11", "3.13")
SETS = ("latest", "pandas2", "lowest")
SHOWN = ("numpy", "pandas", "pyarrow", "scipy", "traceinsight", "perfetto", "ray")


def lowest(extras=EXTRAS):
    """The lower bound of each requirement, as an exact version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]
    return [text.replace(">=", "==") for text in wanted]


def interpreter(version):
    """A program that runs this version of Python; None where there is none."""
    folders = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    for found in (shutil.which(f"python{version}"), *map(str, folders)):
        done = found and subprocess.run([found, "-V"], capture_output=True, text=True, check=False)
        if done and done.returncode == 0 and f" {version}." in done.stdout:
            return found
    return None


def installed(python, wheel, kind, folder):
    """The Python of a fresh environment that holds the wheel with its extras.

    uv keeps what it unpacked once and links it into each environment; pip would fetch, unpack and write each again.
    """
    uv = (Path(sys.executable).with_name("uv"), "--quiet")
    call(*uv, "venv", "--python", python, folder)
    fresh = folder / "bin" / "python"
    more = {"latest": [], "pandas2": ["pandas<3"], "lowest": lowest()}[kind]
    pip = (*uv, "pip", "install", "--python", fresh, "--only-binary", ":all:")
    call(*pip, f"tracekit4d[{','.join(EXTRAS)}] @ {wheel.as_uri()}", *more)
    call(*uv, "pip", "check", "--python", fresh)
    return fresh


def call(*command, cwd=None):
    """What a command prints; raises SystemExit with what it said where it fails."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))[:200]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def tried(fresh, folder):
    """Use commands and library of the environment in an empty folder; returns the versions that it holds."""
    program = fresh.parent / "tracekit"
    sample = ROOT / "sample_traces" / "demo_slow_tp"
    call(program, "doctor", cwd=folder)
    wanted = [part for kind in ("html", "perfetto", "json") for part in (f"--{kind}", folder / kind)]
    call(program, "slowrank", sample, "--quiet", *wanted, cwd=folder)
    assert json.loads((folder / "json").read_text())["suspects"][0]["rank"] == 5
    for command in (["breakdown", sample], ["hang", ROOT / "sample_traces" / "hang_host_stall"]):
        call(program, *command, "--quiet", "--html", folder / f"{command[0]}.html", cwd=folder)
    call(fresh, "-P", Path(__file__).with_name("library_use.py"), sample, cwd=folder)
    versions = {p["name"].lower(): p["version"] for p in json.loads(
        call(Path(sys.executable).with_name("uv"), "pip", "list", "--python", fresh, "--format", "json"))}  # fmt: skip
    return {name: versions[name] for name in SHOWN}


def without_extras(wheel, folder):
    """Help, version and completion of every command in every combination of extras; returns how many there are."""
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    call(sys.executable, *pip, "--target", folder, wheel)
    path = os.pathsep.join([str(folder), sysconfig.get_paths()["purelib"]])
    asked = helps()
    sets = [missing for count in range(len(MODULES) + 1) for missing in combinations(MODULES, count)]
    bare, surroundings = (sys.executable, "-S", "-P"), {**os.environ, "PYTHONPATH": path}
    for missing, found in zip(
        sets, ends_of_each(sets, asked, bare, cwd=folder, env=surroundings), strict=True
    ):
        wrong = [(words, end) for words, end in zip(asked, found, strict=True) if end[0]]
        assert not wrong, (missing, wrong)
    return len(sets)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.wheel", description=__doc__)
    parser.add_argument("--python", nargs="*", default=PYTHONS)
    parser.add_argument("--versions", nargs="*", choices=SETS, default=SETS)
    given = parser.parse_args()
    missing = 0
    with tempfile.TemporaryDirectory(prefix="tracekit-wheel-") as name:
        source = Path(name) / "source"
        kept = re.compile(r"__pycache__|\.egg-info$|^\.")
        shutil.copytree(ROOT, source, ignore=lambda _, names: [n for n in names if kept.search(n)])
        build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
        call(sys.executable, *build, "-w", name, source)
        (wheel,) = Path(name).glob("*.whl")
        count = without_extras(wheel, Path(name) / "bare")
        print(f"help, version and completion of all commands: {count} combinations of extras", flush=True)
        for version in given.python:
            python = interpreter(version)
            for kind in given.versions:
                if python is None or (kind == "lowest" and version != PYTHONS[0]):
                    why = "no such Python here" if python is None else "no builds of so old packages"
                    missing += python is None
                    print(f"{version:5} {kind:8} not tried: {why}", flush=True)
                    continue
                folder = Path(name) / f"{version}-{kind}"
                work = Path(name) / f"{version}-{kind}-work"
                work.mkdir()
                held = tried(installed(python, wheel, kind, folder), work)
                print(
                    f"{version:5} {kind:8} works: {', '.join(f'{n} {v}' for n, v in held.items())}",
                    flush=True,
                )
                shutil.rmtree(folder)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
