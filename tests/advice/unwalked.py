"""Messages with advice that no case follows yet; a case takes its line out of `unwalked.json`."""

import json
from pathlib import Path

UNWALKED = frozenset(json.loads(Path(__file__).with_suffix(".json").read_text()))
