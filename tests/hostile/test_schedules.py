"""A number that no schedule has refuses the table by name, at once, wherever it stands."""

import re
import time

import pytest
from tracekit_cli.reftrain_commands.schedule import schedule

from reftrain.schedule.csv_form import to_csv
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.text_form import to_text
from tests.fuzz.outcome import outcome

TABLE = make_schedule("1f1b", 2, 1, 2, 1)
TEXTS = {"txt": to_text(TABLE), "csv": to_csv(TABLE)}
WILD = ("9999999", "2147483648", "-1", "9" * 5000, "0x10", "1e9", "nan", "\u0663", "")
NUMBER = re.compile(r"(?<!schedule/)\b\d+|(?<=[FB])\d+")
PLACES = [(end, found.span()) for end, text in TEXTS.items() for found in NUMBER.finditer(text)]
SECONDS = 20.0


@pytest.mark.parametrize("value", WILD, ids=lambda v: repr(v[:12]))
def test_a_wild_number_refuses_the_table(tmp_path, value):
    begin, ends = time.process_time(), {}
    for end, (first, last) in PLACES:
        text = TEXTS[end]
        path = tmp_path / f"table.{end}"
        path.write_text(text[:first] + value + text[last:])
        ends[end, first] = outcome(schedule, [str(path), "--json", "-"], tmp_path)[0]
    refused = [place for place, word in ends.items() if word == "refused"]
    assert set(ends.values()) <= {"refused", "answered"}
    assert len(refused) >= len(PLACES) - 3  # of whole tables k and the steps between updates may be anything
    assert time.process_time() - begin < SECONDS
