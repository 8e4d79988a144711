"""The replay shares nothing with the trainer that could hold the trainer's bug."""

import subprocess
import sys

CODE = """
import sys
import reftrain.replay.command, reftrain.replay.declared_plan, reftrain.replay.engine, reftrain.replay.capture_writer
print("\\n".join(name for name in sys.modules if name.startswith("reftrain.")))
"""
TRAINER = (
    "model",
    "parallel",
    "trainer",
    "train",
    "comm",
    "hooks",
    "loss",
    "optim",
    "mesh",
    "capture",
    "orders",
    "launcher",
)


def test_no_module_of_the_trainer_is_loaded():
    loaded = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert "reftrain.replay.engine" in loaded
    shared = {name for name in loaded if not name.startswith("reftrain.replay")}
    wrong = [name for name in shared if name.split(".")[1] in TRAINER]
    assert not wrong
    assert not {name for name in shared if name.startswith("reftrain.faults.bugs")}
    assert not {name for name in shared if name.startswith("reftrain.data.")} - {"reftrain.data.sequences"}
