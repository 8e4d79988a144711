"""Devices in place of files and numbers beyond reason are refused at once, with the bound."""

import os
import re

import pytest
from click.testing import CliRunner
from tracekit_cli.numerics_commands import advise as numerics_advise
from tracekit_cli.reftrain_commands import plan as reftrain_plan
from tracekit_cli.reftrain_commands import run as reftrain_run
from tracekit_cli.reftrain_commands import schedule as reftrain_schedule
from tracekit_cli.reftrain_commands import simulate as reftrain_simulate

from reftrain.errors import ConfigError, ReftrainError
from tracekit.small_files import read_small

SIZES = ("--preset", "tiny", "--gpus", "4", "--tokens", "4K", "--seq", "256", "--quiet")
MESH = ("--preset", "tiny", "--mesh", "dp=2", "--quiet")
COMMANDS = {
    "memory": reftrain_plan.memory,
    "run": reftrain_run.run,
    "schedule": reftrain_schedule.schedule,
    "simulate": reftrain_simulate.simulate,
    "plan": reftrain_plan.plan,
    "advise": numerics_advise.advise,
}


def refusal(name, *arguments):
    """What a command says that refuses its arguments."""
    done = CliRunner().invoke(COMMANDS[name], list(map(str, arguments)))
    assert done.exit_code != 0
    assert done.exception is None or isinstance(done.exception, SystemExit | ReftrainError), done.exception
    return done.output + str(done.exception)


@pytest.fixture
def devices(tmp_path):
    """A pipe that nothing writes into, /dev/zero under the name of a file, and a folder."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    return tmp_path


@pytest.mark.parametrize("name", ["pipe.toml", "zero.toml"])
@pytest.mark.parametrize("command", ["memory", "run", "simulate"])
def test_a_configuration_is_a_regular_file(command, name, devices):
    assert "is not a regular file" in refusal(command, devices / name)


@pytest.mark.parametrize("name", ["pipe.toml", "zero.toml"])
def test_a_machine_is_a_regular_file(name, devices):
    assert "is not a regular file" in refusal("plan", *SIZES, "--hardware", devices / name)


def test_a_table_is_a_regular_file(devices):
    os.mkfifo(devices / "pipe.csv")
    assert "is not a regular file" in refusal("schedule", devices / "pipe.csv")


def test_small_files_have_a_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_small(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_small(path, 4)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e308", "-1"])
def test_numbers_beyond_reason_are_refused(value, tmp_path):
    assert re.search(r"range|valid float", refusal("plan", *SIZES, "--mean-document", value))
    assert re.search(r"range|valid float", refusal("advise", tmp_path, "--budget", value))
    assert "out of bounds" in refusal("simulate", *MESH, "--fault", f"slow_compute:rank=1,factor={value}")
    assert re.search(r"range|valid float", refusal("simulate", *MESH, "--jitter", value))


def test_a_micro_batch_beyond_the_step_is_named():
    with pytest.raises(ConfigError, match="--micro-batch: 99 sequences are more than the 16 of a step"):
        CliRunner().invoke(COMMANDS["plan"], [*SIZES, "--micro-batch", "99"], catch_exceptions=False)
    assert "--micro-batch" in refusal("plan", *SIZES, "--micro-batch", "99999999999")
