"""Recordings on disk, made once, and the program."""

import pytest

from tests.cli.program import Program
from tests.generator import generate


def made(tmp_path_factory, seed, kind):
    case = generate(seed, kind=kind, world=4, steps=4, missing=set(), truncated={}, host_name=False)
    folder = tmp_path_factory.mktemp(kind) / "traces"
    case.write(folder)
    return folder, case.truth


@pytest.fixture(scope="session")
def slow(tmp_path_factory):
    """Four ranks, one of them planted slow: (folder, truth)."""
    return made(tmp_path_factory, 101, "slow_compute")


@pytest.fixture(scope="session")
def healthy(tmp_path_factory):
    """Four ranks, nobody slow: (folder, truth)."""
    return made(tmp_path_factory, 106, "healthy")


@pytest.fixture
def tracekit(monkeypatch, capfd):
    """Call `tracekit` with arguments."""
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)
    monkeypatch.setattr("tracekit_cli.progress._SILENT_S", 3600.0)  # a busy machine is no reason to talk
    return Program(monkeypatch, capfd)
