"""What within a cause takes the time: which kernels of a slow device, and what a paused host does."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import cut_at, grid, prepared
from tests.tables.rows import events
from tracekit.analysis.mechanisms.calls import launching_threads
from tracekit.analysis.mechanisms.device import Compared, named, of_device, of_replaced, of_work, surplus
from tracekit.analysis.mechanisms.host import of_host
from tracekit.analysis.mechanisms.pauses import of_pauses, quota
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.causes import CAUSES, MECHANISMS
from tracekit.report.slowrank_json import slowrank_document
from tracekit.report.slowrank_text import slowrank_text
from tracekit.steps.features import Features, Work
from tracekit.steps.host_need import products_in_steps

RANKS, SLOW, STEPS = 4, 2, 6
KERNELS = {
    "ampere_bf16_gemm": 500.0,
    "cutlass_gemm_tn": 300.0,
    "flash_fwd_kernel": 200.0,
    "vectorized_elementwise_kernel": 200.0,
    "rms_norm_kernel": 150.0,
    "moe_grouped_gemm": 100.0,
}
SIZED = {"dtype": "BFloat16", "in_nelems": 1 << 20, "out_nelems": 1 << 20}


def reduced(lines, begins, step):
    """All ranks reduce, and end their step."""
    handles = [line.post(0) for line in lines]
    end = max(h[0] for h in handles) + 200
    for line, handle, begin in zip(lines, handles, begins, strict=True):
        line.finish(handle, end, **SIZED)
        line.step(step, begin)


def job(
    folder,
    factor=lambda name, step: 1.0,
    pause=lambda line, step: None,
    kernels=KERNELS,
    flops=None,
    beside=None,
):
    """Two layers a step; kernels of rank `SLOW` take `factor` times as long, and its host does `pause` in each step.

    `flops`: of each operator by rank, where shapes were recorded. Hosts of the other ranks do `beside`.
    """
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for line in lines:
            for _ in range(2):
                for name, us in kernels.items():
                    more = {} if flops is None else {"flops": flops(line.rank)}
                    line._row(line.at, 5, "cpu_op", "aten::op", **more)
                    line.compute(us * (factor(name, step) if line.rank == SLOW else 1), name)
            if line.rank == SLOW:
                pause(line, step)
            elif beside is not None:
                beside(line, step)
            line.compute(10, "rms_norm_kernel")
        reduced(lines, begins, step)
    return write_run(folder, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)


@pytest.mark.parametrize(
    ("mine", "peers", "name"),
    [
        ("NVIDIA L4", "NVIDIA H200", "other_device"),
        ("NVIDIA H200", "NVIDIA H200", "clock"),
        ("NVIDIA L4", "", "clock"),
    ],
)
def test_a_device_of_another_model_is_named(tmp_path, mine, peers, name):
    run = job(tmp_path, lambda _name, _step: 1.4)
    run = replace(run, ranks=tuple(replace(r, device=mine if r.rank == SLOW else peers) for r in run.ranks))
    (suspect,) = analyse(run).suspects
    assert (suspect.rank, suspect.mechanisms[0].name) == (SLOW, name)


def only(*names):
    return lambda name, step: 1.4 if name in names else 1.0


def beside_peers(factor):
    """The kernels of `STEPS` steps, each run five times a step, by factors of their names and steps."""
    cells = [
        (name, step, us * 1000) for name, us in KERNELS.items() for step in range(STEPS) for _ in range(5)
    ]
    usual = np.array([us for *_, us in cells])
    took = usual * [factor(name, step) for name, step, _ in cells]
    return Compared(np.array([n for n, *_ in cells], object), np.array([s for _, s, _ in cells]), took, usual)


@pytest.mark.parametrize(
    ("factor", "mechanism"),
    [
        (lambda name, step: 1.2, "clock"),
        (lambda name, step: 1.25 if "gemm" in name else 1.15, "clock"),
        (lambda name, step: 1.1 + 0.08 * step, "throttling"),
        (only("ampere_bf16_gemm", "cutlass_gemm_tn"), "matrix_products"),
        (only("vectorized_elementwise_kernel", "rms_norm_kernel"), "memory_bandwidth"),
        (only("cutlass_gemm_tn"), "one_kernel"),
        (only("flash_fwd_kernel"), "attention"),
        (only("moe_grouped_gemm"), "experts"),
    ],
)
def test_kernels_show_the_mechanism_of_a_slow_device(factor, mechanism):
    first, *others = of_device(beside_peers(factor))
    assert (first.name, first.sure) == (mechanism, True)
    assert first.share >= 0.8
    assert all(m.share < 0.2 for m in others)


@pytest.mark.parametrize(
    ("factor", "mechanism"),
    [(lambda name, step: 1.2, "clock"), (only("cutlass_gemm_tn"), "one_kernel")],
    ids=["clock", "one kernel"],
)
def test_a_suspect_has_its_mechanism(tmp_path, factor, mechanism):
    finding = analyse(job(tmp_path, factor))
    (suspect,) = finding.suspects
    assert (suspect.rank, suspect.cause, suspect.mechanism.name) == (SLOW, "gpu_compute", mechanism)
    text = slowrank_text(finding)
    assert f"mechanism  {mechanism}: " in text
    assert MECHANISMS[mechanism].next_step in text


def test_two_mechanisms_at_once_are_both_listed(tmp_path):
    def factor(name, step):
        return {"cutlass_gemm_tn": 1.5, "vectorized_elementwise_kernel": 1.7}.get(name, 1.0)

    finding = analyse(job(tmp_path, factor))
    (suspect,) = finding.suspects
    assert suspect.mechanism is None
    assert [m.name for m in suspect.mechanisms] == ["one_kernel", "one_kernel"]
    assert sum(m.share for m in suspect.mechanisms) == pytest.approx(1.0, abs=0.01)
    assert "mechanism  not decided: one_kernel (5" in slowrank_text(finding)
    assert CAUSES["gpu_compute"].next_step in slowrank_text(finding)


def sleeps(line, step):
    """A pause of 580 µs, as much as kernels that take 1.2 times as long add."""
    line.at += 580.0


def test_two_causes_at_once_are_both_listed(tmp_path):
    """Half of the excess is longer kernels, and half a pause a step: neither explains 80 %."""
    finding = analyse(job(tmp_path, lambda name, step: 1.2, sleeps))
    (suspect,) = finding.suspects
    assert (finding.verdict, finding.cause, suspect.rank, suspect.cause) == (
        "slow_rank",
        "unknown",
        SLOW,
        "unknown",
    )
    assert {c.name: c.share for c in suspect.causes} == pytest.approx(
        {"gpu_compute": 0.5, "host_stall": 0.5}, abs=0.02
    )
    assert suspect.mechanisms == ()
    text = slowrank_text(finding)
    assert " unknown: not decided: " in text
    for name in ("gpu_compute", "host_stall"):
        assert (
            f"{name} (50% of the excess): {CAUSES[name].meaning}, excluded by {CAUSES[name].excluded_by}"
            in text
        )
        assert f"for {name}, {CAUSES[name].next_step}" in text
    assert [c["named"] for c in slowrank_document(finding)["suspects"][0]["causes"]] == [False, False]


def evaluates(line, step):
    """One more pass over the kernels of a layer, as an evaluation on this rank makes it."""
    for name, us in KERNELS.items():
        line.compute(us, name)


def test_work_that_no_peer_runs_is_no_slow_device(tmp_path):
    finding = analyse(job(tmp_path, pause=evaluates))
    (suspect,) = finding.suspects
    assert (suspect.rank, suspect.cause) == (SLOW, "gpu_compute")
    assert suspect.mechanism is not None
    assert suspect.mechanism.name == "more_work"
    says = "it runs ampere_bf16_gemm 3 times a step and its peers 2 times, and more of 5 other names"
    assert suspect.mechanism.detail == says
    assert "do it less often" in slowrank_text(finding)


@pytest.mark.parametrize(("flops", "name"), [(1250, "more_work"), (1000, "clock")])
def test_larger_products_are_no_slow_device(tmp_path, flops, name):
    run = job(tmp_path, lambda name, step: 1.25, flops=lambda rank: flops if rank == SLOW else 1000)
    (suspect,) = analyse(run).suspects
    assert suspect.mechanism.name == name
    says = "its products have 1.25 times the FLOPs of its peers'"
    assert suspect.mechanism.detail.startswith(says) == (flops > 1000)


def test_products_of_a_cut_step_do_not_count(tmp_path):
    """A host may be ahead of its device by any part of the step that windows cut."""
    run = job(tmp_path, flops=lambda rank: 1000)
    path = run.folder / next(r.table for r in run.ranks if r.rank == SLOW)
    rows = pq.read_table(path).to_pylist()
    last = [n for n, r in enumerate(rows) if r["name"] == "aten::op"][-3:]
    pq.write_table(events([r for n, r in enumerate(rows) if n not in last]), path)
    case = prepared(run, grid(dp=RANKS))
    cut = replace(case.steps, cut=cut_at(case.steps, 0.5))
    found = [products_in_steps(run, case.ops, steps, SLOW) for steps in (case.steps, cut)]
    each = 2 * len(KERNELS) * 1000
    assert found == pytest.approx([each - 3000 / STEPS, each])


def test_launches_of_additional_kernels_are_additional_work():
    """40 short kernels that the host launches one by one: most of their time is gaps."""
    peer = features(gemm=Work(10, 100.0))
    checks = replace(features(gemm=Work(10, 100.0), isnan=Work(40, 2.0)), gap=1000.0)
    found = surplus(checks, [peer] * 3)
    assert found.ns == pytest.approx(40 * 2.0 + 0.8 * 1000.0)
    (only,) = of_work(found, 880.0)
    assert (only.share, only.detail) == (1.0, "it runs isnan 40 times a step and its peers 0 times")


def test_a_kernel_of_another_library_is_no_additional_work():
    """As often as the one that it replaces; where it needs a second kernel each time, that is half of the new ones."""
    peer = features(gemm=Work(10, 100.0), add=Work(10, 50.0))
    assert surplus(features(slow_gemm=Work(10, 300.0), add=Work(10, 50.0)), [peer] * 3).ns == 0
    split = features(slow_gemm=Work(10, 300.0), reduce=Work(10, 20.0), add=Work(10, 50.0))
    assert surplus(split, [peer] * 3).ns == pytest.approx(0.5 * 10 * 320.0)
    assert of_work(surplus(peer, [peer] * 3), 1000.0) == []


def features(**work):
    none = np.zeros(0, np.int64)
    return Features(0, True, 0, 0, 0, none, 0, 0, 0, 0, 0, 0, 0, (), (), work=work)


@pytest.mark.parametrize(
    ("kernel", "busy", "shown"), [("other", 9e6, 1), ("gemm", 9e6, 0), ("other", 14e6, 0)]
)
def test_a_kernel_replaces_that_of_the_peers(kernel, busy, shown):
    """The rank runs it for 5 ms a step, its peers run another one for 2 ms; they compute for 6 ms in all."""
    peer = replace(features(norm=Work(2, 1e6), gemm=Work(4, 1e6)), busy=6e6)
    rank = replace(features(**{"gemm": Work(4, 1e6), kernel: Work(5, 1e6)}), busy=busy)
    found = of_replaced(rank, [peer, peer])
    assert [m.name for m in found] == ["one_kernel"] * shown
    assert all("runs other for 5.00 ms" in m.detail and "norm for 2.00 ms" in m.detail for m in found)


def test_one_kind_of_kernels_names_nothing():
    found = beside_peers(lambda name, step: 1.3)
    (alone,) = of_device(found.taken(found.name == "ampere_bf16_gemm"))
    assert not alone.sure
    assert "no other kind of kernels was recorded" in alone.detail


def span(name, cat="python_function", us=600.0):
    """The device idles while the host is in a span of this name."""

    def pause(line, step):
        line._row(line.at, us, cat, name)
        line.at += us

    return pause


def still(line, step):
    """The device idles and the host records nothing."""
    line.at += 600


def pausing(folder, where, host_us):
    """Of ten kernels a step, one follows a pause of the host of `SLOW`: at `where` (step → number, within an operator).

    Operators of the host last `host_us` of the 1000 µs of a kernel.
    """
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(8):
        begins = [line.at for line in lines]
        for line in lines:
            line._row(line.at, 20, "cpu_op", "aten::embedding")
            for number in range(10):
                at, within = where(step) if line.rank == SLOW else (None, False)
                pause = 3000.0 if number == at else 0.0
                line.compute(1000, "ampere_bf16_gemm")
                line._row(line.at - host_us, host_us + (pause if within else 0), "cpu_op", "aten::mm")
                line.at += pause
        reduced(lines, begins, step)
    run = write_run(folder, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)
    case = prepared(run, grid(dp=RANKS))
    return named(of_host(case.run, case.ops, case.steps, SLOW))


PLACES = (3, 7, 1, 8, 5, 2, 9, 4)


@pytest.mark.parametrize(
    ("where", "host_us", "found"),
    [
        (lambda step: (PLACES[step], False), 900, ["garbage_collection", "lock"]),
        (lambda step: (PLACES[step], False), 100, ["process_stopped", "garbage_collection"]),
        (lambda step: (5, False), 100, ["host_code", "garbage_collection"]),
        (lambda step: (PLACES[step], step % 4 > 0), 900, ["process_stopped", "garbage_collection"]),
    ],
    ids=["between long operators", "between short ones", "at one place", "within operators"],
)
def test_a_pause_without_a_span_has_two_candidates(tmp_path, where, host_us, found):
    """Operators run no Python: a stop strikes within them too, and nothing without a span is named but a stop."""
    first, second = pausing(tmp_path, where, host_us)
    assert [first.name, second.name] == found
    assert [first.sure, second.sure] == [second.share < 0.5, False]


def test_undecided_pauses_say_what_to_record(tmp_path):
    text = slowrank_text(analyse(job(tmp_path, pause=still)))
    assert "mechanism  not decided: " in text
    for name in ("host_code", "garbage_collection"):
        assert f"for {name}, {MECHANISMS[name].decided_by}" in text


def test_operators_of_a_cpu_are_stopped_beyond_other_steps():
    """Two operators of one name are 100 and 500 µs in each step; the first takes 3 ms more in one of them."""
    at = 1000 * np.concatenate([1000 + 9000 * step + np.array([0, 5000]) for step in range(4)])
    lasted = 1000 * np.array([100, 500, 3100, 500, 100, 500, 100, 500])
    names, thread = np.array(["aten::mm"] * 7 + ["segment"], object), np.ones(8, np.int64)
    (calls,) = launching_threads(at, at + lasted, names, thread, np.ones(8, bool))
    begins = 9_000_000 * np.arange(4)
    stalls = calls.stalled((begins, begins + 9_000_000))
    assert [side.tolist() for side in stalls] == [[10_100_000], [13_100_000]]


def test_an_operator_that_hands_over_to_python_may_collect():
    """A tensor subclass runs Python within an operator, and calls the operator of the same name again."""
    start, end = np.array([0, 50, 200]), np.array([100, 90, 300])
    names = np.array(["aten::mm"] * 3, object)
    (calls,) = launching_threads(start, end, names, np.ones(3, np.int64), np.ones(3, bool))
    assert calls.native.tolist() == [False, True, True]
    assert [calls.around(*span) for span in ((10, 40), (60, 80), (210, 290), (120, 150))] == [0, 1, 2, -1]


def read_back(line, step):
    """The host reads a value back, which waits for the device, and launches the next kernel late."""
    line._row(line.at - 310, 310, "cpu_op", "aten::item")
    line._row(line.at - 300, 299, "cuda_runtime", "cudaStreamSynchronize")
    for turn in range(20):
        line._row(line.at + 30 * turn, 20, "cpu_op", "aten::add")
    line.at += 600


def read_and(then):
    """The host reads a value back as its peers do, and then does something else for long."""

    def pause(line, step):
        line._row(line.at - 310, 310, "cpu_op", "aten::item")
        line._row(line.at - 300, 299, "cuda_runtime", "cudaStreamSynchronize")
        then(line, step)

    return pause


@pytest.mark.parametrize(
    ("pause", "mechanism"),
    [(span("write_data", "user_annotation"), "host_span"), (still, "garbage_collection")],
)
def test_a_wait_explains_no_pause_behind_it(tmp_path, pause, mechanism):
    case = prepared(job(tmp_path, pause=read_and(pause)), grid(dp=RANKS))
    first, *_ = of_host(case.run, case.ops, case.steps, SLOW)
    assert first.name == mechanism


@pytest.mark.parametrize(
    ("pause", "mechanism"),
    [
        (span("Python GC"), "garbage_collection"),
        (span("<built-in function collect>"), "garbage_collection"),
        (span("torch/_dynamo/convert_frame.py(100): compile_inner"), "recompilation"),
        (span("save_checkpoint", "user_annotation"), "input_output"),
        (span("<built-in method acquire of _thread.lock object at 0x7f57>"), "lock"),
        (span("evaluate_metrics"), "host_span"),
        (read_back, "synchronisation"),
    ],
)
def test_spans_in_gaps_show_the_mechanism_of_a_pause(tmp_path, pause, mechanism):
    case = prepared(job(tmp_path, pause=pause), grid(dp=RANKS))
    first, *others = of_host(case.run, case.ops, case.steps, SLOW)
    assert first.name == mechanism
    assert first.share >= 0.8
    assert first.detail.startswith("aten::item waits for the device") == (mechanism == "synchronisation")
    assert all(m.share < 0.2 for m in others)


def test_a_lock_of_another_thread_explains_no_pause(tmp_path):
    """A thread in the background waits for its queue all the time, also while the host does nothing."""

    def waits(line, step):
        line._row(line.at, 10, "cpu_op", "aten::add", tid=1)
        line._row(line.at - 100, 800, "python_function", "queue.py(171): get", tid=2)
        line.at += 600

    case = prepared(job(tmp_path, pause=waits), grid(dp=RANKS))
    assert all(m.name != "lock" for m in of_host(case.run, case.ops, case.steps, SLOW))


@pytest.mark.parametrize(
    ("theirs", "says"),
    [((), "none"), ((0, 2, 4), "the same steps"), ((1, 3), "other steps"), ((0, 1), "some of them")],
)
def test_collections_say_how_often_and_whether_in_turn(tmp_path, theirs, says):
    """The slow rank collects in every second step, within one frame, and rank 0 in the steps `theirs`."""

    def collects(line, step):
        if step % 2 == 0:
            line._row(line.at - 5, 610, "python_function", "train.py(10): step")
            line._row(line.at, 600, "python_function", "Python GC")
            line.at += 600

    def beside(line, step):
        if line.rank == 0 and step in theirs:
            line._row(line.at - 50, 20, "python_function", "Python GC")

    case = prepared(job(tmp_path, pause=collects, beside=beside), grid(dp=RANKS))
    found = of_host(case.run, case.ops, case.steps, SLOW)[0]
    assert found.name == "garbage_collection"
    told = f", within train.py(10): step; in 3 of {STEPS} steps, every 7 ms; its peers collect in {says}"
    assert found.detail.endswith(told)


def frames(line, _step):
    """Each step records a frame of Python beside its kernels."""
    line._row(line.at - 50, 20, "python_function", "torch/nn/modules/module.py(1501): _call_impl")


@pytest.mark.parametrize(("factor", "everyone", "rows"), [(1.0, False, 1), (1.0, True, 0), (1.4, False, 0)])
def test_stacks_that_only_a_slow_host_records_are_said(tmp_path, factor, everyone, rows):
    """They slow no device, and all ranks alike where all record them."""

    def pause(line, step):
        frames(line, step)
        line.at += 600 if factor == 1 else 0

    run = job(tmp_path, lambda name, step: factor, pause=pause, beside=frames if everyone else None)
    finding = analyse(run)
    assert [s.rank for s in finding.suspects] == [SLOW]
    found = [q for q in finding.quality if q.kind == "unlike_recordings"]
    assert len(found) == rows
    assert all(q.detail.startswith(f"rank {SLOW}: Python stacks are recorded") for q in found)


@pytest.mark.parametrize(("layers", "mechanism"), [(28, "cpu_quota"), (20, "host_code")])
def test_pauses_at_one_phase_are_a_quota(tmp_path, layers, mechanism):
    """A process gets 40 of each 100 ms. Where steps last one period, pauses are at one place of each step as well."""
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(8):
        begins = [line.at for line in lines]
        for line in lines:
            for _ in range(layers):
                if line.rank == SLOW and line.at % 100_000 >= 40_000:
                    line.at += 100_000 - line.at % 100_000
                line._row(line.at, 5, "cpu_op", "aten::op")
                line.compute(2_000, "ampere_bf16_gemm")
        reduced(lines, begins, step)
    run = write_run(tmp_path, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)
    case = prepared(run, grid(dp=RANKS))
    assert of_host(case.run, case.ops, case.steps, SLOW)[0].name == mechanism


@pytest.mark.parametrize(
    ("apart", "lasted", "quota"), [(100, 40, True), (300, 60, False), (1000, 60, False), (100, 140, False)]
)
def test_stops_of_a_longer_timer_are_no_quota(apart, lasted, quota):
    """A quota stops a process in any period, until that ends; steps of 170 ms lie anywhere beside both."""
    begins = 1_000_000 * (40 + apart * np.arange(12))
    steps = 170_000_000 * np.arange(100)
    found = of_pauses(
        (begins, begins + 1_000_000 * lasted), [], (steps, steps + 170_000_000), 17e9, 12e6 * lasted
    )
    assert (found[0].name == "cpu_quota") == quota


@pytest.mark.parametrize("grid_ms", [100, 0])
def test_a_quota_ends_pauses_at_one_phase(grid_ms):
    """Pauses begin at any moment; short waits for a core lie among them. Competitors end theirs at any moment."""
    rng = np.random.default_rng(4)
    begins = np.cumsum(rng.uniform(60, 160, 60))
    ends = np.ceil(begins / 100) * 100 if grid_ms else begins + rng.uniform(5, 60, 60)
    ends[::4] = begins[::4] + 7
    pauses = (1e6 * begins).astype(np.int64), (1e6 * ends).astype(np.int64)
    steps = 1_170_000_000 * np.arange(20)
    assert bool(quota(pauses, (steps, steps + 1_170_000_000))) == bool(grid_ms)


def test_a_rank_without_host_events_has_no_mechanism(tmp_path):
    run = job(tmp_path, pause=still)
    path = run.folder / run.record(SLOW).table
    rows = [row for row in pq.read_table(path).to_pylist() if row["cat"] != "cpu_op"]
    pq.write_table(events(rows), path)
    case = prepared(run, grid(dp=RANKS))
    assert of_host(case.run, case.ops, case.steps, SLOW) == []


def test_device_mechanisms_add_up_to_the_excess():
    rng = np.random.default_rng(3)
    for _ in range(200):
        names = np.repeat(np.array(list(KERNELS), object), 5)
        usual = np.repeat(list(KERNELS.values()), 5) * 1000
        factor = np.repeat(1 + rng.exponential(0.2, len(KERNELS)) * rng.integers(0, 2, len(KERNELS)), 5)
        found = of_device(Compared(names, np.tile(np.arange(5), len(KERNELS)), usual * factor, usual))
        assert sum(m.share for m in found) == pytest.approx(1.0 if found else 0.0)
        assert {m.name for m in found} <= MECHANISMS.keys()


def test_shorter_kernels_have_no_mechanism():
    usual = np.full(4, 1000.0)
    names = np.array(["a_gemm", "b", "c", "d"], object)
    assert of_device(Compared(names, np.zeros(4, np.int64), usual * 0.9, usual)) == []
