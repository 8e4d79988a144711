"""The examples in launch/ are right: their flags exist, and their ranks make the mesh of their configuration.

A dry run: the launchers themselves are replaced by programs that write down how they were called; `reftrain
run --dry-run` then answers in the world that such a call makes.
"""

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from reftrain.config.file import load

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
CONFIG = LAUNCH / "llama3-8b.toml"


@pytest.fixture
def recorded(tmp_path):
    """Run a script with `torchrun` and `srun` replaced; return the arguments they got."""
    log = tmp_path / "arguments"
    for program in ("torchrun", "srun"):
        path = tmp_path / program
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {log}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text(f"touch {tmp_path}/activated\n")

    def call(*command):
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "VENV": str(tmp_path / "venv")}
        subprocess.run(["bash", *map(str, command)], check=True, cwd=ROOT, env=environment, timeout=30)
        return log.read_text().splitlines()

    return call


@pytest.fixture
def dry_run(ranks):
    """Answer of `reftrain` in one rank's environment; `arguments` begin with the program's name."""

    def run(arguments, **environment):
        assert arguments[0] == "reftrain"
        done = ranks.reftrain(*arguments[1:], "--dry-run", cwd=ROOT, environment=environment).wait()
        return done.returncode, done.stderr

    return run


def test_torchrun_script(recorded, dry_run):
    options = get_args_parser().parse_args(recorded(LAUNCH / "torchrun.sh", 8, "node0"))
    size = int(options.nnodes) * int(options.nproc_per_node)
    assert size == load(CONFIG, {}).mesh.world_size
    assert options.rdzv_endpoint == "node0:29500"
    assert options.no_python
    command = [options.training_script, *options.training_script_args]
    code, said = dry_run(command, RANK="63", LOCAL_RANK="7", WORLD_SIZE=str(size))
    assert (code, said) == (0, "would join as rank 63 (local 7) of 64 at env://\n")
    code, said = dry_run(command, RANK="0", LOCAL_RANK="0", WORLD_SIZE="8")
    assert code == 2
    assert "64 ranks, but 8 were started" in said


def test_slurm_script(recorded, dry_run, tmp_path):
    script = LAUNCH / "slurm.sbatch"
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\d+)$", script.read_text(), re.MULTILINE))
    size = int(asked["nodes"]) * int(asked["ntasks-per-node"])
    assert size == load(CONFIG, {}).mesh.world_size
    assert asked["gpus-per-node"] == asked["ntasks-per-node"]
    flag, *command = recorded(script)
    assert (tmp_path / "activated").exists()
    assert flag == "--kill-on-bad-exit=1"
    code, said = dry_run(
        command,
        SLURM_PROCID="9",
        SLURM_LOCALID="1",
        SLURM_NTASKS=str(size),
        SLURM_JOB_ID="7",
        MASTER_ADDR="node0",
    )
    assert (code, said) == (0, "would join as rank 9 (local 1) of 64 at tcp://node0:20007\n")


def test_slurm_finds_the_first_node(tmp_path, dry_run):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames node[3-4]" ] && printf "node3\\nnode4\\n"\n')
    scontrol.chmod(0o755)
    world = {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "64",
        "SLURM_JOB_NODELIST": "node[3-4]",
    }
    command = ["reftrain", "run", str(CONFIG)]
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert dry_run(command, **world, PATH=path) == (
        0,
        "would join as rank 0 (local 0) of 64 at tcp://node3:20000\n",
    )
    code, said = dry_run(command, **world)
    assert code == 2
    assert (
        said == "reftrain: MASTER_ADDR: is not set and scontrol is missing; export MASTER_ADDR in the job\n"
    )


def test_kubernetes_objects(dry_run):
    """Read without a YAML library: the file keeps to one value a line where this looks."""
    text = (LAUNCH / "kubernetes.yaml").read_text()
    command = re.search(r"command:\n((?: +- \S.*\n)+)", text)[1]
    program, *arguments = [line.strip().removeprefix("- ") for line in command.splitlines()]
    assert program == "torchrun"
    numbered = [a.replace("$(JOB_COMPLETION_INDEX)", "7") for a in arguments]
    options = get_args_parser().parse_args(numbered)
    pods = int(re.search(r"completions: (\d+)", text)[1])
    assert pods == int(re.search(r"parallelism: (\d+)", text)[1]) == int(options.nnodes)
    assert int(options.nproc_per_node) == int(re.search(r"nvidia.com/gpu: (\d+)", text)[1])
    assert pods * int(options.nproc_per_node) == load(CONFIG, {}).mesh.world_size
    assert options.master_addr == "reftrain-0.reftrain", "the first pod under the headless service"
    started = [options.training_script, *options.training_script_args]
    local = [a.replace("/config/", f"{LAUNCH}/") for a in started]
    code, _ = dry_run(local, RANK="5", LOCAL_RANK="5", WORLD_SIZE="64")
    assert code == 0


def test_the_configuration_leaves_evidence():
    """A job that leaves nothing to analyse is no example: traces of whole steps, and dumps."""
    evidence = load(CONFIG, {}).evidence
    assert len(evidence.trace_steps) >= 3
    assert evidence.records_flight


def test_what_kubernetes_names_is_made_there():
    text = (LAUNCH / "kubernetes.yaml").read_text()
    claims = set(re.findall(r"claimName: ([\w-]+)", text))
    made = re.findall(r"kind: PersistentVolumeClaim\nmetadata:\n  name: ([\w-]+)", text)
    assert claims == set(made) == {"reftrain-runs"}
    generated = (LAUNCH / "kustomization.yaml").read_text()
    (config,) = re.findall(r"configMap: \{name: ([\w-]+)\}", text)
    assert re.search(
        rf"configMapGenerator:\n  - name: {config}\n    files:\n      - {CONFIG.name}\n", generated
    )
    assert "disableNameSuffixHash: true" in generated


def test_the_image_holds_what_its_command_needs():
    """Each extra exists, and the files that are copied first are not left out of the build."""
    text = (LAUNCH / "Containerfile").read_text()
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", text)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {
        "constraints.txt",
        "pyproject.toml",
        "setup.py",
        "tracekit",
        "numerics",
        "reftrain",
        "cli",
    } & {*ignored}
    image = re.search(r"image: (\S+)", (LAUNCH / "kubernetes.yaml").read_text())[1]
    assert image in text
