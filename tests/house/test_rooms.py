"""A room holds what one person can look over, and few lead from files to a finding."""

import re
import subprocess
from collections import Counter

from tests.house.source import ROOT

MOST_MODULES = 25
MOST_ROOMS = 12
FOLDERS = {
    "changelog.d",
    "cli",
    "docs",
    "launch",
    "numerics",
    "reftrain",
    "sample_traces",
    "studies",
    "tests",
    "tracekit",
}


def test_no_room_is_crowded():
    modules = (
        path for name in ("tracekit", "numerics", "reftrain", "cli") for path in (ROOT / name).rglob("*.py")
    )
    rooms = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert {room: count for room, count in rooms.items() if count > MOST_MODULES} == {}


def test_the_walk_names_few_rooms_that_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    walk = text[text.index("**From files to a finding") :].split("\n\n")[0]
    rooms = list(dict.fromkeys(re.findall(r"`([a-z_]+)`", walk)))
    folders = {path.name for path in (ROOT / "tracekit").rglob("*") if path.is_dir()}
    assert 1 < len(rooms) <= MOST_ROOMS
    assert set(rooms) <= folders


def test_no_run_folder_is_kept_beside_the_rooms():
    command = ["git", "ls-tree", "-d", "--name-only", "HEAD"]
    listed = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert {name for name in listed if not name.startswith(".")} <= FOLDERS
