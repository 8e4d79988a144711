"""A run folder that was changed after it was written is refused, with the file named; wild numbers stay at the door."""

import hashlib
import json
import random
import shutil
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hostile.job import documents, write
from tests.hostile.test_values import HUGE
from tests.marks import quick_first, quick_nth
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import InputError
from tracekit.ingest import load
from tracekit.manifest import signature
from tracekit.schema import EVENTS

FILES = ("manifest.json", "groups.parquet", "events/rank-000000.parquet", "events/rank-000003.parquet")
REMEDY = "ingest the traces again"
PLACES = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    load([str(write(folder / "in", documents()))], out=folder / "run")
    return folder / "run"


@pytest.fixture
def run(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def opened(run):
    """The run with every table read."""
    found = load([str(run)])
    return [found.events(r.rank).num_rows for r in found.ranks]


def refused(run, name):
    """Whether a run is refused with the file, or for its manifest the folder, named."""
    with pytest.raises(InputError) as error:
        opened(run)
    said = str(error.value)
    return str(run / name if name != "manifest.json" else run) in said and REMEDY in said


@pytest.mark.parametrize("name", quick_nth(4, FILES))
def test_a_flipped_bit_refuses_the_file(run, name):
    data, draw = (run / name).read_bytes(), random.Random(name)
    for place in [draw.randrange(len(data)) for _ in range(PLACES)]:
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        (run / name).write_bytes(changed)
        if (
            name != "manifest.json" or b'"schema": "tracekit.run/' in changed[:100]
        ):  # else it is no run folder
            assert refused(run, name), place


@pytest.mark.parametrize("name", FILES)
@pytest.mark.quick(1)
def test_a_cut_file_is_refused(run, name):
    data = (run / name).read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 2):
        (run / name).write_bytes(data[:length])
        if name != "manifest.json" or length > 100:
            assert refused(run, name), length


def test_exchanged_tables_are_refused(run):
    one, other = (run / name for name in FILES[2:])
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    assert refused(run, FILES[2])


def test_a_missing_file_is_refused(run):
    (run / FILES[3]).unlink()
    assert refused(run, "manifest.json")


def signed(run, change=lambda manifest: None):
    """Give a changed run the hashes that whoever changed it would give it."""
    manifest = json.loads((run / "manifest.json").read_text())
    for rank in manifest["ranks"]:
        table = run / rank["table"]
        rank["table_sha256"] = hashlib.sha256(table.read_bytes()).hexdigest()
        rank["events"] = pq.read_metadata(table).num_rows
    manifest["groups_sha256"] = hashlib.sha256((run / "groups.parquet").read_bytes()).hexdigest()
    change(manifest)
    manifest["sha256"] = signature(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest, indent=1))


def test_a_run_signed_again_is_opened(run):
    before = opened(run)
    signed(run)
    assert opened(run) == before


NUMBERS = ("rank", "world_size", "bytes", "events")
LARGE = [v for v in HUGE if v > 2**20 or v < 0]
RANGED = [
    field.name for field in EVENTS if pa.types.is_integer(field.type) and field.name not in ("pid", "tid")
]


@pytest.mark.parametrize("value", quick_first(1, LARGE))
@pytest.mark.parametrize("key", NUMBERS)
def test_a_wild_number_of_a_rank_is_refused(run, key, value):
    if key in ("bytes", "events") and 0 < value < 2**62:
        value = -value
    signed(run, lambda manifest: manifest["ranks"][3].update({key: value}))
    assert refused(run, "manifest.json")


@pytest.mark.parametrize("value", quick_first(1, [*LARGE, 2**20 + 1, "8", 8.0, True, [8]]))
def test_a_wild_world_is_refused(run, value):
    signed(run, lambda manifest: manifest.update(world_size=value))
    assert refused(run, "manifest.json")


@pytest.mark.parametrize(
    ("key", "value"), [("windows", 2**63), ("windows", -(2**63)), ("groups", -2), ("groups", 10**9)]
)
def test_a_wild_member_of_a_list_is_refused(run, key, value):
    signed(run, lambda manifest: manifest["ranks"][3].update({key: [value]}))
    assert refused(run, "manifest.json")


@pytest.mark.parametrize("ranks", [[0, 10**9], [-1], [2**31 - 1]])
def test_a_group_beyond_all_jobs_is_refused(run, ranks):
    groups = pq.read_table(run / "groups.parquet").to_pylist()
    groups[0]["ranks"] = ranks
    pq.write_table(
        pa.Table.from_pylist(groups, pq.read_schema(run / "groups.parquet")), run / "groups.parquet"
    )
    signed(run)
    assert refused(run, "manifest.json")


def exchanged(run, one=2, other=5):
    """Give each of two ranks the table of the other."""
    first, second = (run / f"events/rank-{rank:06d}.parquet" for rank in (one, other))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


@pytest.mark.quick(1)
@pytest.mark.parametrize("ranks", [(2, 5), (0, 1), (3, 7)])
def test_tables_exchanged_and_signed_are_refused(run, ranks):
    exchanged(run, *ranks)
    signed(run)
    with pytest.raises(InputError, match=f"is the table of another rank than {ranks[0]}"):
        opened(run)


def with_groups(run, change):
    """Change the rows of the table of groups, and sign the run."""
    groups = pq.read_table(run / "groups.parquet").to_pylist()
    change(groups)
    schema = pq.read_schema(run / "groups.parquet")
    pq.write_table(pa.Table.from_pylist(groups, schema), run / "groups.parquet")
    signed(run)


@pytest.mark.parametrize(
    "change",
    [
        lambda groups: groups[0].update(ranks=groups[1]["ranks"]),
        lambda groups: groups[0].update(group=1),
        lambda groups: groups.reverse(),
    ],
    ids=["twin", "number", "order"],
)
def test_groups_that_no_ingest_writes_are_refused(run, change):
    with_groups(run, change)
    assert refused(run, "manifest.json")


@pytest.mark.parametrize("names", [["a"] * 2, "word", [""] * 40, [1]])
def test_names_of_absent_windows_are_refused(run, names):
    signed(run, lambda manifest: manifest["ranks"][0].update(window_names=names))
    assert refused(run, "manifest.json")


def test_without_a_world_no_lone_rank_is_far(run):
    """Work grows with the ranks that are named, never with the largest number among them."""
    with_groups(run, lambda groups: groups[-1].update(ranks=[0, 200_000]))
    signed(run, lambda manifest: manifest.update(world_size=None))
    assert refused(run, "manifest.json")


def with_numbers(run, name, value):
    """Put one number into every row of a column of one rank."""
    path = run / FILES[3]
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    changed = pa.array([value] * table.num_rows, table.schema.field(name).type)
    pq.write_table(table.set_column(at, name, changed), path)
    signed(run)


@pytest.mark.parametrize("name", quick_nth(3, RANGED))
@pytest.mark.quick(2)
def test_every_whole_number_of_an_event_has_a_range(run, name):
    least = -(2 ** (EVENTS.field(name).type.bit_width - 1))
    if name == "micro_batch":  # of its 32 bits nothing is too small
        return
    with_numbers(run, name, least)
    assert refused(run, FILES[3])


@pytest.mark.parametrize("value", quick_first(1, [2**31 - 1, 2**62 - 1, 2**20 - 1]))
@pytest.mark.parametrize("name", quick_first(3, RANGED))
@pytest.mark.quick(1)
def test_large_numbers_of_events_blame_no_innocent(run, name, value):
    """The largest that a column may hold, or is refused with the file named."""
    with_numbers(run, name, min(value, 2 ** (EVENTS.field(name).type.bit_width - 1) - 1))
    with suppress(InputError):
        found = analyse(load([str(run)]))
        assert {s.rank for s in found.suspects} <= {3, 6}
        assert found.verdict != "healthy"
