"""Configurations and machines with numbers that no job has: one sentence that names the file, at once."""

from importlib import resources

import pytest
from tracekit_cli.reftrain_commands.run import run
from tracekit_cli.reftrain_commands.simulate import simulate

from reftrain.config.file import load
from reftrain.errors import ConfigError
from tests.fuzz.outcome import outcome

RUNS = {
    "width that the preset's heads do not divide": "[model]\ndim = 4\n",
    "number of 5000 digits": f"[run]\nseed = {'9' * 5000}\n",
    "nested lists": f"[evidence]\ntrace_steps = {'[' * 2000}{']' * 2000}\n",
    "nan": "[optimizer]\nclip_norm = nan\n",
    "layers": f"[model]\nlayers = {10**9}\n",
    "least integer": f"[mesh]\ntp = {-(2**63)}\n",
    "ranks": f"[mesh]\ndp = {2**40}\n",
    "table of no table": "model = 3\n",
    "value of a table's name": "[model.heads]\nx = 1\n",
    "escape codes": '[pipeline]\nschedule = "\\u001b[2J"\n',
    "zero byte": "[run]\nsteps = \x00\n",
    "half a surrogate": '[model]\npreset = "\\ud800"\n',
}
H100 = (resources.files("reftrain.cost.hardware") / "h100.toml").read_text("utf-8")
MACHINES = {
    "tile of the smallest number": ("tile_rows = 256", "tile_rows = 5e-324"),
    "bandwidth of the smallest number": ("gb_s = 450", "gb_s = 5e-324"),
    "processors of the smallest number": ("units = 132", "units = 5e-324"),
    "infinite rate": ("peak_tflops = 989", "peak_tflops = inf"),
    "node without end": ("node_size = 8", f"node_size = {10**400}"),
    "number of 5000 digits": ("node_size = 8", f"node_size = {'9' * 5000}"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_configuration_is_refused_by_name(tmp_path, name):
    path = tmp_path / "run.toml"
    path.write_text(RUNS[name])
    assert outcome(run, [str(path), "--dry-run"], tmp_path)[0] == "refused"
    assert outcome(simulate, [str(path), "--steps", "1", "--quiet"], tmp_path)[0] == "refused"


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_refused_by_name(tmp_path, name):
    old, new = MACHINES[name]
    assert H100.count(old) == 1
    path = tmp_path / "machine.toml"
    path.write_text(H100.replace(old, new))
    arguments = ["--preset", "tiny", "--mesh", "tp=2", "--steps", "1", "--hardware", str(path), "--quiet"]
    assert outcome(simulate, arguments, tmp_path)[0] == "refused"


def test_a_flag_alone_blames_no_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[run]\nsteps = 2\n")
    with pytest.raises(ConfigError) as error:
        load(path, {"model": {"dim": 4}})
    assert str(path) not in str(error.value)
