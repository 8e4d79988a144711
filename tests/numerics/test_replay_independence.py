"""The replay shares nothing with the trainer that could hold the trainer's bug."""

import functools
import subprocess
import sys

import pytest

CODE = """
import sys
import reftrain.replay.command, reftrain.replay.declared_plan, reftrain.replay.engine, reftrain.replay.capture_writer
print("\\n".join(name for name in sys.modules if name.startswith("reftrain.")))
"""
TRAINER = ("model", "parallel", "execute", "train", "job", "record", "rank", "faults")
BATCHES = "reftrain.data.batches"
"""What the trainer makes of documents: a rank's sequences, targets, masks. The other modules there read inputs."""
RECORDER = """
import sys
import reftrain.record.capture, reftrain.record.orders
print("\\n".join(name for name in sys.modules if name.startswith("reftrain.")))
"""


@functools.cache
def loaded_by(code):
    """Names of the modules that a process of its own loads."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


@pytest.mark.slow
def test_no_module_of_the_trainer_is_loaded():
    loaded = loaded_by(CODE)
    assert "reftrain.replay.engine" in loaded
    shared = {name for name in loaded if not name.startswith("reftrain.replay")}
    wrong = [name for name in shared if name.split(".")[1] in TRAINER or name == BATCHES]
    assert not wrong


@pytest.mark.slow
def test_the_recorder_loads_nothing_of_the_replay():
    loaded = loaded_by(RECORDER)
    assert "reftrain.record.capture" in loaded
    assert not [name for name in loaded if name.startswith("reftrain.replay")]


@pytest.mark.slow
def test_both_share_tables_of_places_only():
    """Number formats, chunk bounds and first values are derived on either side; documents and schedules are inputs."""
    both = set(loaded_by(CODE)) & set(loaded_by(RECORDER))
    rooms = {name.split(".")[1] for name in both}
    assert rooms == {"config", "data", "errors", "layout", "schedule", "thresholds"}
