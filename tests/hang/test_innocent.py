"""Nobody innocent is blamed: renumbered, renamed, with victims' files gone, with the ring cut, on real dumps too."""

import dataclasses
import itertools
import pickle
import random

import pytest

from tests.conftest import SAMPLES
from tests.hang.bench import grid, write_all
from tests.hang.conftest import REAL
from tests.hang.simulate import Case, make
from tests.hang.sweep import answer
from tests.marks import quick_first
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.plain_pickle import loads_plain

VISIBLE = ("host_stall", "device_unseen", "wrong_op", "crash")


def renumbered(case, rng):
    """The same job with ranks called otherwise."""
    world = len(case.dumps) + (case.fault == "crash")
    new = list(range(world))
    rng.shuffle(new)
    dumps = {}
    for rank, dump in case.dumps.items():
        config = {}
        order = {}
        for name, group in dump["pg_config"].items():
            old = [int(n) for n in group["ranks"].strip("[]").split(",")]
            ranks = sorted(new[r] for r in old)
            order[name] = {i: ranks.index(new[r]) for i, r in enumerate(old)}
            config[name] = {**group, "ranks": str(ranks)}
        entries = [{**e, "profiling_name": renamed(e, order[e["process_group"][0]])} for e in dump["entries"]]
        dumps[new[rank]] = {**dump, "pg_config": config, "entries": entries}
    culprit = None if case.culprit is None else new[case.culprit]
    return Case(case.sizes, case.fault, case.axis, culprit, case.timed, dumps)


def renamed(entry, place):
    if not entry["is_p2p"]:
        return entry["profiling_name"]
    verb, way = entry["profiling_name"].split(" ")
    arrow = "->" if "->" in way else "<-"
    me, peer = (place[int(n)] for n in way.split(arrow))
    return f"{verb} {me}{arrow}{peer}"


@pytest.mark.parametrize("seed", quick_first(4, range(12)))
def test_renumbered_ranks_give_the_renumbered_answer(judge, seed):
    fault = VISIBLE[seed % 4]
    rng = random.Random(seed)
    case = renumbered(make(seed, fault), rng)
    assert {c.rank for c in judge(case).culprits} == {case.culprit}


@pytest.mark.parametrize("seed", quick_first(3, range(12)))
def test_files_may_be_called_anything(judge, seed):
    fault = ("host_stall", "device_unseen", "wrong_op")[seed % 3]
    case = make(seed, fault)
    rng = random.Random(seed)
    names = rng.sample(range(10_000), len(case.dumps))
    odd = Case(
        case.sizes,
        case.fault,
        case.axis,
        case.culprit,
        case.timed,
        dict(zip(names, case.dumps.values(), strict=True)),
    )
    assert {c.rank for c in judge(odd, name="host-{}.pickle").culprits} == {case.culprit}


@pytest.mark.quick(3)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", quick_first(2, range(8)))
def test_victims_files_may_be_missing(judge, seed, count):
    case = make(seed, ("host_stall", "device_unseen")[seed % 2])
    rng = random.Random(seed)
    drop = rng.sample([r for r in case.dumps if r != case.culprit], count)
    assert {c.rank for c in judge(case, drop=drop).culprits} <= {case.culprit}


@pytest.mark.parametrize("seed", quick_first(4, range(16)))
def test_ring_cut_to_five_entries(judge, seed):
    case = make(seed, VISIBLE[seed % 4], ring=5, status=seed % 3 > 0)
    assert {c.rank for c in judge(case).culprits} <= {case.culprit}


@pytest.mark.realdata
@pytest.mark.parametrize("name", sorted(REAL))
def test_real_hangs(real, name):
    culprits, kind = REAL[name]
    finding = analyse(load_dumps([str(real / name)]))
    assert finding.verdict == "hang"
    assert {c.rank for c in finding.culprits} == culprits
    assert {c.kind for c in finding.culprits} == {kind}
    assert set(finding.victims) == set(range(16)) - culprits


def variant(folder, rng=None, cut=None, renamed=False):
    """Dumps of a real hang by file name, and its culprits: ranks permuted, files renamed, rings cut."""
    culprits, _ = REAL[folder.name]
    dumps = {int(p.name.rpartition("_")[2]): pickle.loads(p.read_bytes()) for p in folder.glob("_dump_*")}
    if rng is not None:
        case = renumbered(Case({}, None, "", None, False, dumps), rng)
        new = dict(zip(dumps, case.dumps, strict=True))
        dumps, culprits = case.dumps, {new[r] for r in culprits}
    names = {rank: f"_dump_{rank}" for rank in dumps}
    if renamed:
        names = dict(
            zip(dumps, (f"pod-{n}.bin" for n in random.Random(7).sample(range(900), len(dumps))), strict=True)
        )
    for dump in dumps.values():
        dump["entries"] = dump["entries"][-cut:] if cut else dump["entries"]
    return {names[r]: d for r, d in dumps.items()}, culprits


def loaded(dumps, folder):
    folder.mkdir()
    for name, dump in dumps.items():
        (folder / name).write_bytes(pickle.dumps(dump))
    return load_dumps([str(folder)])


@pytest.mark.realdata
@pytest.mark.parametrize("shape", quick_first(1, ["both", "as they are", "renumbered", "renamed"]))
@pytest.mark.parametrize("cut", quick_first(1, [5, None]))
@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.quick(1)
def test_real_hangs_without_one_to_three_victims(real, name, cut, shape, tmp_path):
    rng = random.Random(len(shape)) if shape in {"renumbered", "both"} else None
    files, culprits = variant(real / name, rng, cut, shape in {"renamed", "both"})
    dumps = loaded(files, tmp_path / "d")
    assert sorted(dumps.dumps) == list(range(16))
    victims = sorted(set(range(16)) - culprits)
    drops = [(), *itertools.combinations(victims, 1), *itertools.combinations(victims, 2)]
    drops += random.Random(3).sample(list(itertools.combinations(victims, 3)), 60)
    named, few = 0, 0
    for drop in drops:
        left = {r: d for r, d in dumps.dumps.items() if r not in drop}
        finding = analyse(dataclasses.replace(dumps, dumps=left))
        found = {c.rank for c in finding.culprits}
        assert found <= culprits, (drop, finding.reason)
        assert {c.kind for c in finding.culprits} <= {REAL[name][1]}, drop
        named += found == culprits
        few += found == culprits and len(drop) < 3
    assert few >= 90
    assert named >= (0.75 if cut else 0.95) * len(drops)


@pytest.mark.realdata
@pytest.mark.parametrize("cut", [None, 5])
@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.quick(1)
def test_real_hangs_with_files_missing_on_disk(real, name, cut, tmp_path):
    files, culprits = variant(real / name, random.Random(11), cut, renamed=True)
    for turn in range(6):
        rng = random.Random(turn)
        gone = rng.sample(sorted(files), 1 + turn % 3)  # a culprit's own among them, now and then
        finding = analyse(loaded({n: d for n, d in files.items() if n not in gone}, tmp_path / f"t{turn}"))
        assert {c.rank for c in finding.culprits} <= culprits, finding.reason
        assert len(finding.ranks.missing) == len(gone)


@pytest.mark.parametrize(
    ("seed", "shown"),
    [
        (7000018, "ring"),  # the skipped call has fallen out of the pair's rings, not out of its sisters'
        (7100137, "ring"),
        (7100137, "active"),  # nothing but outstanding calls tells what was called before
        (7000043, "dropped"),  # the other end of the message that has another size left no dump
        (7200145, "cut"),
        (7000059, "dropped"),  # the only partner in the call left out left no dump
        (7200028, "dropped"),
        (7200098, "dropped"),
        (7200146, "dropped_ring"),
        (7200115, "cut"),
        (7200075, "dropped_ring"),  # for most ranks the job has ended
        (7000024, "dropped"),  # the rank without a dump finished later calls with its peers
        (7000094, "dropped"),
        (7200132, "dropped"),  # a device that has not begun, beside a rank without a dump
        (7200148, "cut"),
    ],
)
@pytest.mark.quick(4)
def test_a_missing_partners_calls_blame_nobody_innocent(seed, shown):
    found = answer((seed, shown))
    assert found.outcome in {"right", "inconclusive"}, found.told


def test_peers_show_the_call_a_missing_ranks_partner_skipped():
    assert {answer((seed, "dropped")).outcome for seed in (7000043, 7000059, 7200028, 7200098)} == {"right"}


@pytest.mark.slow
def test_a_rank_without_a_dump_among_a_thousand(tmp_path):
    sizes, culprit = grid(1024), 731
    write_all(tmp_path, sizes, range(1024), 20, culprit, "dp")
    (tmp_path / f"dump_{culprit:05d}").unlink()
    finding = analyse(load_dumps([str(tmp_path)]))
    assert [(c.rank, c.kind) for c in finding.culprits] == [(culprit, "missing_dump")]
    assert len(finding.victims) == 1023


def test_an_empty_ring_shows_no_lost_message(tmp_path):
    """A recorder that wrote the state of groups alone says nothing about messages, which the state does not count."""
    for path in sorted((SAMPLES / "hang_host_stall" / "fr").iterdir()):
        dump = loads_plain(path.read_bytes())
        emptied = dump | {"entries": []} if path.name == "rank_10" else dump
        (tmp_path / path.name).write_bytes(pickle.dumps(emptied, protocol=2))
    found = analyse(load_dumps([str(tmp_path)]))
    assert [c.rank for c in found.culprits] == [6]
