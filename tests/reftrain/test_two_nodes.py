"""Two "nodes" in network namespaces, joined by launch/torchrun.sh: a fault on the second is found in their traces."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load

ROOT = Path(__file__).parents[2]
NODES = {"node0": "10.77.0.1", "node1": "10.77.0.2"}
CONFIG = """
[model]
preset = "tiny"
layers = 2
ffn_dim = 1024
vocab_size = 16
[mesh]
tp = 2
dp = 2
[data]
seq_len = 64
batch_size = 4
padding = 0.0
mean_document = 16
[evidence]
trace_steps = [2, 3, 4, 5]
trace_nested = false
measure_lag = false
faults = ["slow_compute:rank=3,factor=1.6"]
[run]
steps = 6
compute = "emulated"
emulated_gflops = 0.03
out = "{out}"
"""
"""As `reftrain demo`, whose computing takes no processor, so that other work beside the test costs no rank alone."""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def nodes(tmp_path):
    """Namespaces with an address each, joined by a cable; skips where they may not be made."""
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    names = {node: f"t4d{os.getpid()}{node}" for node in NODES}
    ends = {node: f"t4d{os.getpid() % 10000}{node[-1]}" for node in NODES}
    try:
        for name in names.values():
            ip("netns", "add", name)
        ip("link", "add", ends["node0"], "type", "veth", "peer", "name", ends["node1"])
        for node, name in names.items():
            ip("link", "set", ends[node], "netns", name)
            ip("-n", name, "addr", "add", f"{NODES[node]}/24", "dev", ends[node])
            for device in (ends[node], "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield {node: (names[node], ends[node]) for node in NODES}
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"network namespaces cannot be made here ({getattr(error, 'stderr', error)!r})")
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_fault_on_the_second_node_is_found(nodes, tmp_path):
    config, hosts = tmp_path / "job.toml", tmp_path / "hosts"
    config.write_text(CONFIG.format(out=tmp_path / "run"))
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in NODES.items()))
    started = []
    for node, (name, device) in nodes.items():
        own = f"hostname {node} && mount --bind {hosts} /etc/hosts && exec bash launch/torchrun.sh 2 node0 {config}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        more = {"PATH": path, "GPUS": "2", "GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}
        command = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "bash", "-c", own]
        environment = {**os.environ, **more}
        with (tmp_path / f"{node}.log").open("wb") as log:
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    try:
        ends = [process.wait(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    said = "".join((tmp_path / f"{node}.log").read_text() for node in nodes)
    if any(ends) and re.search(r"unshare failed|mount: .*denied", said):
        pytest.skip("hosts and names of a namespace cannot be set here")
    assert ends == [0, 0], said[-3000:]
    finding = analyse(load([str(tmp_path / "run")]))
    assert (finding.verdict, [(s.rank, s.host) for s in finding.suspects]) == ("slow_rank", [(3, "node1")])
