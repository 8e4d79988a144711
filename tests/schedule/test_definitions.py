"""The schemes' definitions, worked out by hand on small sizes, and what they refuse."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from reftrain.errors import ScheduleError
from reftrain.papers.llama3 import zero_coupling
from reftrain.schedule.actions import Kind
from reftrain.schedule.check import check
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import generate, make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.memory_peaks import memory_peaks
from reftrain.schedule.registry import SCHEMES, default_virtual
from reftrain.schedule.spec import ScheduleSpec
from reftrain.schedule.timing import time_schedule
from tests.marks import quick_first


def text(actions):
    return " ".join(map(str, actions))


@pytest.mark.parametrize(
    ("name", "arguments", "ranks"),
    [
        ("breadth_first", (2, 2, 2, 1), ["F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1"]),
        ("afab", (2, 2, 2, 1), ["F0.0 F2.0 F0.1 F2.1 B2.0 B0.0 B2.1 B0.1"]),
        ("gems", (2, 1, 3, 1), ["F0.0 B0.0 F1.1@1 B1.1@1 F0.2 B0.2", "F1.0 B1.0 F0.1@1 B0.1@1 F1.2 B1.2"]),
        ("chimera", (2, 1, 2, 1), ["F0.0 F1.1@1 B1.1@1 B0.0", "F0.1@1 F1.0 B1.0 B0.1@1"]),
        (
            "zb_h1",
            (2, 1, 3, 1),
            ["F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 I0.2 W0.2", "F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 W1.2"],
        ),
        (
            "pipedream",
            (2, 1, 3, 1),
            [
                "F0.0 F0.1 V0.1 B0.0 O0.0 F0.2 V0.2 U0.1 B0.1 D0.1 O0.1 U0.2 B0.2 D0.2 O0.2",
                "F1.0 B1.0 O1.0 F1.1 B1.1 O1.1 F1.2 B1.2 O1.2",
            ],
        ),
    ],
)
def test_small_tables(name, arguments, ranks):
    schedule = make_schedule(name, *arguments)
    assert [text(a) for a in schedule.actions[: len(ranks)]] == ranks


def test_two_buffered_weights_are_one_step_old():
    schedule = make_schedule("pipedream_2bw", 2, 1, 2, 1, steps=3)
    assert text(schedule.actions[1]) == (
        "F1.0 B1.0 F1.1 B1.1 V1.2 O1.1 "
        "U1.2 F1.2 U1.2 B1.2 U1.2 F1.3 U1.2 B1.3 D1.2 V1.4 O1.3 "
        "U1.4 F1.4 U1.4 B1.4 U1.4 F1.5 U1.4 B1.5 D1.4 O1.5"
    )
    assert [memory_peaks(schedule, r).weights for r in range(2)] == [2, 2]


def versions_used(schedule, rank):
    """Version (steps taken before) of the weights of every forward and backward on a rank."""
    version, stash, using, out = 0, {}, None, {}
    for a in schedule.actions[rank]:
        if a.kind is Kind.OPTIMIZER_STEP:
            version += 1
        elif a.kind is Kind.STASH_WEIGHTS:
            stash[a.micro_batch] = version
        elif a.kind is Kind.USE_WEIGHTS:
            using = stash[a.micro_batch]
        elif a.kind in {Kind.FORWARD, Kind.BACKWARD}:
            out[a.kind, a.micro_batch] = version if using is None else using
            using = None
    return out


@pytest.mark.parametrize(("p", "m", "steps"), [(2, 2, 4), (3, 4, 3), (4, 4, 4), (4, 9, 3)])
def test_weight_versions(p, m, steps):
    """2BW uses one version a step on all ranks, one step old; PipeDream's lag is p-r-1 micro-batches."""
    two = make_schedule("pipedream_2bw", p, 1, m, 1, steps=steps)
    each = make_schedule("pipedream", p, 1, m, 1, steps=steps)
    for rank in range(p):
        for (_, mb), version in versions_used(two, rank).items():
            assert version == max(0, mb // m - 1)
        for (_, mb), version in versions_used(each, rank).items():
            assert version == max(0, mb - (p - rank - 1))


def test_dualpipe_v_holds_both_ends_on_rank_0():
    schedule = make_schedule("dualpipe_v", 3, 2, 6, 1)
    assert schedule.placement == (0, 1, 2, 2, 1, 0)
    one_way = make_schedule("1f1b", 3, 1, 6, 1)
    half = Costs(f=Fraction(1, 2), b=Fraction(1))
    assert time_schedule(schedule, half).bubble_ratio < time_schedule(one_way, Costs()).bubble_ratio


def test_placements_of_several_pipelines():
    """Down pipeline 1 of four over eight ranks starts on rank 4; each up pipeline is the reverse."""
    schedule = make_schedule("chimera", 8, 1, 8, 1, pipelines=4)
    assert schedule.placements[2] == (4, 5, 6, 7, 0, 1, 2, 3)
    for down, up in ((0, 1), (2, 3)):
        assert schedule.placements[up] == tuple(reversed(schedule.placements[down]))


@pytest.mark.parametrize(
    ("sync", "rank_0", "rank_1"),
    [
        (
            "eager",
            "F0.0 F0.1 F3.2@1 B3.2@1 F3.3@1 B3.3@1 Y3.3@1 B0.0 B0.1 Y0.1",
            "B1.0 B2.3@1 Y2.3@1 B1.1 Y1.1",
        ),
        (
            "eager_opt",
            "F0.0 F0.1 F3.2@1 B3.2@1 F3.3@1 B3.3@1 Y3.3@1 B0.0 B0.1 Y0.1",
            "B1.0 B2.3@1 B1.1 Y2.3@1 Y1.1",
        ),
        (
            "lazy",
            "F0.0 F0.1 F3.2@1 B3.2@1 F3.3@1 B3.3@1 B0.0 B0.1 Y3.3@1 Y0.1",
            "B1.0 B2.3@1 B1.1 Y2.3@1 Y1.1",
        ),
    ],
)
def test_replica_sums_as_in_chimeras_figure_4(sync, rank_0, rank_1):
    """Stage 3 starts early on rank 0, where bubbles follow; stage 2 on rank 1, where none does, only by `eager`."""
    lowered = lower(make_schedule("chimera", 4, 1, 4, 1), 1, sync)
    shown = [
        [a for a in actions if a.kind in {Kind.FORWARD, Kind.BACKWARD, Kind.SYNC_REPLICAS}]
        for actions in lowered.actions
    ]
    assert text(shown[0]) == rank_0
    assert text(shown[1]).endswith(rank_1)


def test_an_early_sum_hides_in_the_bubble():
    schedule = make_schedule("chimera", 4, 1, 4, 1)
    ends = {}
    for sync in ("lazy", "eager_opt"):
        lowered = lower(schedule, 1, sync)
        steps = tuple(
            (*a, *(x.of(Kind.OPTIMIZER_STEP) for x in a if x.kind is Kind.SYNC_REPLICAS))
            for a in lowered.actions
        )
        table = replace(lowered, actions=steps)
        check(table)
        ends[sync] = time_schedule(table, Costs(sync=Fraction(3), step=Fraction(1))).makespan
    assert ends["eager_opt"] <= ends["lazy"]


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "extra", "words"),
    [
        ("chimera", 3, 1, 3, {}, "chimera cannot merge two directions over 3 stages; give an even number"),
        (
            "chimera",
            8,
            1,
            8,
            {"pipelines": 6},
            "chimera cannot lay 6 pipelines over 8 stages; choose among 2, 4, 8",
        ),
        ("chimera", 4, 2, 4, {}, "chimera has one stage a rank"),
        ("gems", 1, 1, 3, {}, "gems needs two directions"),
        (
            "interleaved",
            4,
            2,
            6,
            {},
            "interleaved cannot take 6 micro-batches on 4 ranks; give a multiple of 4",
        ),
        ("interleaved", 4, 1, 8, {}, "interleaved interleaves the virtual stages of a rank"),
        ("pipedream_2bw", 4, 1, 3, {}, "pipedream_2bw keeps two versions of weights and cannot take 3"),
        ("dualpipe_v", 4, 2, 7, {}, "dualpipe_v cannot take 7 micro-batches on 4 ranks; give 8 or more"),
        ("dualpipe_v", 4, 1, 8, {}, "dualpipe_v holds two stages a rank"),
        ("zb_h1", 4, 2, 8, {}, "zb_h1 has one stage a rank"),
        ("1f1b", 4, 1, 8, {"steps": 2}, "1f1b is flushed after every step"),
        ("gpipe", 4, 1, 8, {"concatenation": "halving"}, "gpipe has no choice of pipelines or concatenation"),
        ("gpipe", 4, 1, 8_000_000, {}, "gpipe would have 64000000 actions"),
        ("chimaera", 4, 1, 8, {}, "'chimaera' is unknown; choose gpipe, 1f1b"),
    ],
)
def test_refusals_name_scheme_and_size(name, p, v, m, extra, words):
    with pytest.raises(ScheduleError) as refused:
        make_schedule(name, p, v, m, max(1, p), **extra)
    assert words in str(refused.value)


@pytest.mark.parametrize(("largest", "fewest"), quick_first(1, [(4, 5), (6, 15)]))
@pytest.mark.parametrize("name", list(SCHEMES))
@pytest.mark.quick(3)
def test_every_accepted_size_runs(name, largest, fewest):
    """All of p = 1 to 6 and m = 1 to 3p either run, messages and all, or are refused by name."""
    ran, refused = 0, []
    for p in range(1, largest + 1):
        for m in range(1, 3 * p + 1):
            for concatenation in ("direct", "doubling", "halving") if name == "chimera" else ("direct",):
                steps = 2 if "dream" in name else 1
                try:
                    schedule = make_schedule(
                        name, p, default_virtual(name), m, p, concatenation=concatenation, steps=steps
                    )
                except ScheduleError as error:
                    refused.append(str(error))
                    continue
                for table in (schedule, lower(schedule, 2)):
                    check(table)
                timing = time_schedule(schedule, Costs())
                assert timing.makespan >= 3 * m * default_virtual(name) * steps
                ran += 1
    assert ran >= fewest
    assert all(name in message for message in refused)


def test_zero_goes_with_the_number_of_micro_batches():
    assert zero_coupling(4, 8) == ("1f1b", 1)
    assert zero_coupling(4, 7) == ("afab", 2)


def test_groups_of_replicas_are_no_axis_of_the_mesh():
    """tracekit reads these descriptions in traces and dumps of a bidirectional run."""
    from tracekit.mesh.group_descriptions import hinted_dims, is_foreign

    assert is_foreign(["mesh_replicas_0"])
    assert hinted_dims(["mesh_replicas_0"]) == frozenset()
    assert not is_foreign(["mesh_dp_replicate"])


def test_documentation_lists_the_registry():
    text = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
    section = text.split("## The schemes")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{s.name}` | {s.sizes} | {s.kind} | {s.paper} |" for s in SCHEMES.values()]


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda s: s.name)
def test_registry_properties_are_those_of_the_tables(scheme):
    schedule = make_schedule(scheme.name, 4, scheme.default_virtual, 8, 4)
    assert schedule.name == scheme.name
    assert schedule.synchronous == scheme.synchronous
    assert (schedule.replicas > 1) == scheme.bidirectional
    kinds = {a.kind for _, _, a in schedule.everything()}
    assert (Kind.BACKWARD_WEIGHT in kinds) == scheme.splits_backward


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda s: s.name)
def test_schemes_take_the_options_they_list(scheme):
    """An option that is not listed is refused, or changes nothing."""
    base = ScheduleSpec(scheme.name, 4, 8, scheme.default_virtual, 4)
    plain = generate(base)
    others = {"virtual": 3, "consecutive": 8, "pipelines": 4, "concatenation": "halving", "steps": 2}
    for option, value in others.items():
        try:
            changed = generate(replace(base, **{option: value})) != plain
        except ScheduleError:
            changed = False
        assert changed == (option in scheme.options) or (scheme.name, option) == ("dualpipe_v", "virtual")
