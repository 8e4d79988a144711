"""The wheel and the sdist hold every module and data file, and the programs run from the wheel alone.

Everything is built from a copy, with the setuptools of this environment and without the network. The programs run
with `-S`: without it the editable install of this environment would lend the modules that a wheel lacks.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.house.source import LIBRARIES, ROOT

INSTALLED_AS = {**{name: name for name in LIBRARIES}, "cli": "tracekit_cli"}
PROGRAMS = ("tracekit", "numerics", "reftrain")
SITE_PACKAGES = sysconfig.get_paths()["purelib"]


def shipped():
    """Modules and package data of the repository, as paths from the root."""
    return {
        path.relative_to(ROOT).as_posix()
        for name in INSTALLED_AS
        for pattern in ("*.py", "*.toml", "*.css", "*.j2", "*.js", "py.typed")
        for path in (ROOT / name).rglob(pattern)
    }


def installed(path):
    """Where a path of the repository stands in a wheel."""
    folder, _, rest = path.partition("/")
    return f"{INSTALLED_AS[folder]}/{rest}"


def call(*arguments, cwd, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind, source, out):
    """Build a "wheel" or "sdist" as pip does, by setuptools' hook; returns the file."""
    out.mkdir()
    hook = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    call("-c", hook, out, cwd=source)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    source.mkdir()
    for name in INSTALLED_AS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return build("sdist", source, folder / "dist"), build("wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel that is built from the sdist, as an installer without our wheel would."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist[0]) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build("wheel", source, folder / "dist")


@pytest.fixture(scope="module")
def target(wheel, tmp_path_factory):
    """A folder with the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("target")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    call(*pip, "--target", folder, wheel, cwd=folder)
    return folder


@pytest.fixture
def program(target, tmp_path):
    """Call an installed program from an empty folder, without the repository on the path."""

    def run(name, *arguments):
        path = os.pathsep.join([str(target), SITE_PACKAGES])
        return call("-S", "-P", target / "bin" / name, *arguments, cwd=tmp_path, PYTHONPATH=path)

    return run


def test_sdist_holds_every_module_and_data_file(sdist):
    with tarfile.open(sdist[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped() - names == set()


def test_wheel_holds_exactly_the_modules_and_data_files(wheel, sdist):
    for path in (wheel, sdist[1]):
        with zipfile.ZipFile(path) as archive:
            names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == {installed(name) for name in shipped()}


@pytest.mark.slow
def test_every_module_imports_from_the_wheel(target, tmp_path):
    modules = sorted(
        installed(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in shipped()
        if path.endswith(".py") and not path.endswith("__main__.py")
    )
    text = "import importlib, sys; [print(importlib.import_module(m).__file__) for m in sys.argv[1:]]"
    path = os.pathsep.join([str(target), SITE_PACKAGES])
    files = call("-S", "-P", "-c", text, *modules, cwd=tmp_path, PYTHONPATH=path).split()
    assert len(files) == len(modules)
    assert all(Path(file).is_relative_to(target) for file in files)


def test_wheel_declares_programs_and_the_replayer(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        declared = archive.read(name).decode()
    assert "[numerics.replayers]\nreftrain = reftrain.replay.command:main" in declared
    assert all(f"{name} = tracekit_cli.{name}:main" in declared for name in PROGRAMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_version_is_told_from_the_wheel(program, name):
    assert program(name, "--version").startswith(f"{name}, version ")


def test_tracekit_answers_from_the_wheel(program):
    sample = ROOT / "sample_traces" / "slow_compute"
    answer = json.loads(program("tracekit", "slowrank", sample, "--json", "-"))
    assert answer["verdict"] == "slow_rank"


def test_reftrain_reads_its_hardware_files_from_the_wheel(program):
    options = ("--preset", "tiny", "--gpus", "4", "--tokens", "4K", "--seq", "256")
    answer = json.loads(program("reftrain", "plan", *options, "--json", "-"))
    assert answer["schema"] == "reftrain.plan/1"


@pytest.mark.slow
def test_reftrain_records_and_numerics_compares_from_the_wheel(program, tmp_path):
    small = ("--set", "model.layers=2", "--set", "data.batch_size=4", "--set", "data.seq_len=32")
    options = ("--mesh", "dp=1", "--steps", "1", "--capture", "digest", "--quiet", *small)
    program("reftrain", "run", *options, "--out", tmp_path / "run")
    pair = ("--parallel", tmp_path / "run", "--baseline", tmp_path / "run", "--no-replay")
    told = program("numerics", "compare", *pair, "--json", "-", "--quiet")
    assert json.loads(told)["verdict"] == "identical"
