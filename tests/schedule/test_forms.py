"""Text and CSV: what is written is read back, what torch can say it reads, and bad files are refused."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reftrain.errors import ScheduleError
from reftrain.schedule.check import check, find_problem
from reftrain.schedule.csv_form import from_csv, to_csv, torch_cannot
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES, default_virtual
from reftrain.schedule.text_form import from_text, to_text


def table(name, p, m, zero=None):
    steps = 2 if "dream" in name else 1
    schedule = make_schedule(name, p, default_virtual(name), m, p, steps=steps)
    return schedule if zero is None else lower(schedule, zero)


@given(
    name=st.sampled_from(list(SCHEMES)),
    p=st.sampled_from([2, 4]),
    rounds=st.integers(2, 3),
    zero=st.sampled_from([None, 1, 2]),
)
@settings(max_examples=60, deadline=None)
def test_round_trips(name, p, rounds, zero):
    schedule = table(name, p, rounds * p, zero)
    assert from_text(to_text(schedule), "here") == schedule
    read = from_csv(to_csv(schedule), "here", schedule.name)
    assert read.actions == schedule.actions
    assert read.placements == schedule.placements
    assert read.micro_batches == schedule.micro_batches
    assert read.synchronous == schedule.synchronous


@pytest.mark.parametrize(
    "name", ["gpipe", "1f1b", "interleaved", "flexible", "breadth_first", "zb_h1", "dualpipe_v"]
)
def test_torch_reads_and_can_run_what_we_write(name):
    """torch's own parser, lowering and simulation accept our tables."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = table(name, 4, 8)
    assert torch_cannot(lower(schedule, 1)) is None
    rows = list(csv.reader(io.StringIO(to_csv(schedule))))
    order = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}

    def to_rank(stage):
        return schedule.placement[stage]

    lowered = schedules._add_send_recv(order, to_rank, schedule.stages)
    done = schedules._simulate_comms_compute(lowered, to_rank, schedule.stages)
    for rank, actions in order.items():
        assert [a for a in done[rank] if a is not None and a.is_compute_op] == actions


@pytest.mark.parametrize(
    ("ours", "theirs", "virtual", "m"),
    [
        ("interleaved", "ScheduleInterleaved1F1B", 2, 8),
        ("breadth_first", "ScheduleLoopedBFS", 2, 6),
        ("dualpipe_v", "ScheduleDualPipeV", 2, 8),
    ],
)
def test_torchs_own_tables_are_read_and_can_run(ours, theirs, virtual, m):
    """torch's generators are an oracle: the same computations, and forwards and backwards in the same order."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    ranks = 4
    orders = []
    for rank in range(ranks):
        placed = [rank, 2 * ranks - 1 - rank] if ours == "dualpipe_v" else [rank, rank + ranks]
        stages = [Stage(index, rank, ranks, 2 * ranks) for index in placed]
        order = getattr(schedules, theirs)(stages, m, loss_fn=lambda *_: None).pipeline_order
        orders.append(",".join("" if a is None else str(a) for a in order[rank]))
    read = from_csv("\n".join(orders) + "\n", "torch", ours)
    check(read)
    mine = make_schedule(ours, ranks, virtual, m, ranks)
    assert read.placement == mine.placement
    for rank in range(ranks):
        if ours == "dualpipe_v":
            assert sorted(read.actions[rank]) == sorted(mine.actions[rank])
        elif ours == "breadth_first":  # torch goes back from the last micro-batch, the paper from the first
            forwards = m * virtual
            assert read.actions[rank][:forwards] == mine.actions[rank][:forwards]
        else:
            assert read.actions[rank] == mine.actions[rank]


class Stage:
    """As much of a stage as torch's generators look at."""

    def __init__(self, index, rank, ranks, stages):
        self.stage_index, self.group_rank, self.group_size, self.num_stages = index, rank, ranks, stages
        self.is_first, self.is_last, self.has_backward = index == 0, index == stages - 1, True
        self.submod, self.device, self.group = None, "cpu", None
        self.stage_index_to_group_rank = {}
        self.dw_builder = None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with"),
        (
            "reftrain.schedule/1 x\nmicro_batches 2\nconsecutive 1\nplacement 0\n0: F0.0 Q0.1\n",
            "'Q0.1' is not an action",
        ),
        ("reftrain.schedule/1 x\nmicro_batches two\n", "line 2: 'two' is not a list of numbers"),
        (
            "reftrain.schedule/1 x\nmicro_batches 2\nconsecutive 1\nplacement 7\n0: F0.0\n",
            "beyond the 1 of the table",
        ),
        (
            "reftrain.schedule/1 x\nmicro_batches 2\nconsecutive 1\nplacement 0\n1: F0.0\n",
            "neither a size nor rank 0",
        ),
        (
            "reftrain.schedule/1 x\nmicro_batches 0\nconsecutive 1\nplacement 0\n0: F0.0\n",
            "must be 1 or more",
        ),
        ("reftrain.schedule/1 x\nplacement 0\nplacement 0 0\n0: F0.0\n", "placements of equal length"),
        ("reftrain.schedule/1 x\nmicro_batches 99999999999999999999\n", "is not a list of numbers"),
    ],
)
def test_bad_text_is_refused_with_line_and_reason(text, reason):
    with pytest.raises(ScheduleError, match=r"given\.txt: line ") as refused:
        from_text(text, "given.txt")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no forward"),
        ("0F0,hello\n", "'hello' is not an action"),
        ("0F0,0B0\n0F1\n", "forwards on ranks 0 and 1"),
        ("1F0,1B0\n", "stage 0 of replica 0 has no forward"),
        ("0F0,0REDUCE_GRAD\n", "has no micro-batch"),
        ("0F,0B0\n", "has no micro-batch"),
        ('0F0,"0B0\n', "is not CSV"),
    ],
)
def test_bad_csv_is_refused_with_line_and_reason(text, reason):
    with pytest.raises(ScheduleError, match=r"given\.csv: line ") as refused:
        from_csv(text, "given.csv")
    assert reason in str(refused.value)


@given(st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused(text):
    for read in (from_text, from_csv):
        try:
            schedule = read("reftrain.schedule/1 " + text if read is from_text else text, "x")
        except ScheduleError:
            continue
        find_problem(schedule)
