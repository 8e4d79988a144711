"""Kernels without arguments are joined to what the host recorded: by id, by launch, as batches."""

import numpy as np
import pytest

from tests.tables.rows import bare, comm, gemm, launch, record, recorded, row, title
from tracekit.thresholds.tables import MAX_BATCH_MEMBERS

SEND, RECV = {"dst_rank": 1}, {"src_rank": 1}


def messages(ops):
    """(op, source, destination, kernel) of each operation."""
    return list(zip(ops.op, ops.src.tolist(), ops.dst.tolist(), ops.kernel.tolist(), strict=True))


def test_the_launch_leads_to_the_record_around_it():
    ops = recorded(0, record(0, 10, "send", **SEND), launch(5, 7), bare(20, 5, 7))
    assert messages(ops) == [("send", 0, 1, 0)]


def test_a_record_on_another_thread_is_not_joined():
    ops = recorded(0, record(0, 10, "all_to_all", tid=2), launch(5, 7), bare(20, 5, 7))
    assert ops.op == ("send_recv",)


def test_an_id_that_repeats_the_correlation_needs_its_launch():
    other = record(0, 10, "allreduce", external_id=7)
    ops = recorded(0, other, record(30, 10, "send", **SEND), launch(35, 7), bare(50, 5, 7, external_id=7))
    assert messages(ops) == [("send", 0, 1, 0)]


def test_an_all_to_all_is_no_message():
    ops = recorded(0, record(0, 10, "all_to_allv"), launch(5, 7), bare(20, 5, 7))
    assert ops.op == ("all_to_all",)


@pytest.mark.parametrize("begin", [0, 9])
def test_a_batch_carries_all_its_messages(begin):
    batch = [record(1, 2, "send", **SEND), record(4, 2, "recv", **RECV), title(begin, 20), launch(10, 7)]
    ops = recorded(0, *batch, bare(20, 5, 7))
    assert messages(ops) == [("send", 0, 1, 0), ("recv", 1, 0, 0)]
    assert (ops.start.tolist(), ops.end.tolist()) == ([20_000] * 2, [25_000] * 2)


def test_a_batch_of_rccl_says_nothing_of_itself():
    batch = [record(1, 2, "send", **SEND), record(4, 2, "recv", **RECV), title(9, 20), launch(10, 7)]
    kernel = row("kernel", "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", 20, 5, correlation=7)
    around = [record(40, 9, "allreduce"), launch(45, 8), {**kernel, "ts": 50_000, "correlation": 8}]
    expected = [("send", 0, 1, 0), ("recv", 1, 0, 0), ("all_reduce", -1, -1, 1)]
    assert messages(recorded(0, *batch, kernel, *around)) == expected


@pytest.mark.parametrize(("begin", "launched"), [(1, 90_000), (80_000, 1)])
def test_a_launch_of_another_window_is_none(begin, launched):
    calls = [record(launched, 9, "allreduce"), launch(launched + 2, 7)]
    kernel = row("kernel", "ncclDevKernel_Generic_1", begin, 5, correlation=7)
    ops = recorded(0, *calls, kernel, gemm(70_000, 5), windows=(0, 70_000_000))
    assert (ops.op, ops.issued.tolist()) == (("other",), [begin * 1000])


def test_titles_that_never_end_part_batches_by_begin():
    first = [record(1, 2, "send", **SEND), title(4, 500), launch(5, 7), bare(20, 5, 7)]
    second = [record(31, 2, "recv", **RECV), title(34, 470), launch(35, 8), bare(50, 5, 8)]
    assert messages(recorded(0, *first, *second)) == [("send", 0, 1, 0), ("recv", 1, 0, 1)]


def test_messages_with_kernels_of_their_own_are_no_members():
    single = [record(0, 4, "recv", **RECV), launch(2, 6), bare(8, 3, 6)]
    batch = [record(10, 2, "send", **SEND), title(13, 5), launch(14, 7), bare(20, 5, 7)]
    assert messages(recorded(0, *single, *batch)) == [("recv", 1, 0, 0), ("send", 0, 1, 1)]


def test_records_before_the_last_title_lost_their_kernel():
    lost = [record(0, 2, "send", **SEND), title(3, 2)]
    batch = [record(10, 2, "recv", **RECV), title(13, 5), launch(14, 7), bare(20, 5, 7)]
    assert messages(recorded(0, *lost, *batch)) == [("recv", 1, 0, 0)]


def test_a_split_batch_is_one_operation():
    batch = [record(0, 2, "send", **SEND), title(3, 9), launch(4, 7), launch(6, 8)]
    ops = recorded(0, *batch, bare(20, 5, 7), bare(25, 5, 8))
    assert messages(ops) == [("send", 0, 1, 0)]
    assert (ops.start.tolist(), ops.end.tolist()) == ([20_000], [30_000])


def test_launches_without_fresh_messages_stay_unread():
    batch = [record(0, 2, "send", **SEND), title(3, 2), launch(4, 7), bare(20, 5, 7)]
    ops = recorded(0, *batch, title(30, 5), launch(32, 8), bare(40, 5, 8))
    assert ops.op == ("send", "send_recv")


def test_absurdly_many_messages_are_not_read():
    many = [record(i, 0.5, "send", **SEND) for i in range(MAX_BATCH_MEMBERS + 1)]
    ops = recorded(0, *many, title(900, 5), launch(901, 7), bare(950, 5, 7))
    assert ops.op == ("send_recv",)


def test_a_batch_belongs_to_the_step_of_its_launch():
    marks = [row("user_annotation", f"ProfilerStep#{n}", 100 * n, 100) for n in (0, 1)]
    batch = [record(90, 2, "send", **SEND), title(95, 2), launch(96, 7), bare(120, 5, 7)]
    ops = recorded(0, *marks, *batch)
    assert np.array_equal(ops.step, [0])


def call(begin, us, name):
    """A call of torch 2.2 without shapes: neither it nor the record inside it names an operation or a peer."""
    here = {"pid": 1, "tid": 1}
    inside = row("cpu_op", "record_param_comms", begin + 0.5, us - 1, in_nelems=64, out_nelems=64, **here)
    return [row("cpu_op", name, begin, us, **here), inside]


@pytest.mark.parametrize("kernel", ["ncclDevKernel_SendRecv", "ncclDevKernel_Generic_4"])
def test_calls_tell_directions_that_records_do_not(kernel):
    batch = [*call(1, 3, "c10d::send"), *call(5, 3, "c10d::recv_"), title(9, 500), launch(10, 7)]
    ops = recorded(0, *batch, row("kernel", kernel, 20, 5, correlation=7))
    assert messages(ops) == [("send_recv", -1, -1, 0)] * 2
    assert (ops.way.tolist(), ops.nelems.tolist()) == ([1, -1], [64, 64])


def test_a_call_around_a_record_counts_once():
    around = row("cpu_op", "c10d::send", 0, 6, pid=1, tid=1)
    batch = [around, record(1, 4, "send", **SEND), title(8, 4), launch(10, 7)]
    assert messages(recorded(0, *batch, bare(20, 5, 7))) == [("send", 0, 1, 0)]


def test_a_call_whose_kernel_tells_joins_no_batch():
    """The record of the first message lost its arguments, its kernel kept them; the second lost both."""
    told = row("kernel", "ncclDevKernel_SendRecv", 20, 5, correlation=7, collective="send", **SEND)
    first = [*call(0, 9, "c10d::send"), launch(4, 7), told]
    second = [*call(30, 9, "c10d::recv_"), launch(34, 8), bare(50, 5, 8)]
    assert messages(recorded(0, *first, *second)) == [("send", 0, 1, 0), ("send_recv", -1, -1, 1)]


def test_an_all_to_all_joins_no_batch():
    """Up to torch 2.3 nothing but its stream tells it from the second kernel of a batch that was split."""
    batch = [
        record(1, 1, "send"),
        record(3, 1, "recv"),
        title(5, 100),
        launch(6, 1),
        bare(20, 5, 1, stream=7),
    ]
    behind = [launch(8, 2), bare(30, 50, 2, stream=9)]
    split = [launch(8, 2), bare(30, 50, 2, stream=7)]
    ends = [recorded(0, *batch, *more, gemm(0, 1)).end.tolist() for more in (behind, split)]
    assert ends == [[25_000, 25_000, 80_000], [80_000, 80_000]]


def oneccl(begin, us, **more):
    """A collective's kernel of a library that is not known by name, and that annotates nothing."""
    return row("kernel", "oneccl_allreduce_base<float, 2>", begin, us, **more)


def on_xpu(begin, correlation):
    """The launch of a kernel on another kind of device, on the main thread."""
    return {**launch(begin, correlation), "cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"}


def test_a_kernel_that_a_record_launches_communicates():
    host = record(10, 10, "allreduce", external_id=91)
    early, later = oneccl(1, 5), oneccl(20, 5, external_id=91, correlation=7)
    ops = recorded(0, host, on_xpu(15, 7), early, later, gemm(30, 5, external_id=92))
    assert (ops.op, ops.busy[0].tolist()) == (("all_reduce", "all_reduce"), [30_000])


def test_a_kernel_of_an_operator_in_a_record_computes():
    host = [record(10, 10, "allreduce", external_id=91), record(40, 10, "wait", external_id=93)]
    inside = row("cpu_op", "aten::copy_", 12, 2, pid=1, tid=1, external_id=92)
    copies = [gemm(20, 5, external_id=92), gemm(50, 5, external_id=93), gemm(60, 5, external_id=91)]
    ops = recorded(0, *host, inside, comm(30, 5, 0), *copies)
    assert ops.busy[0].tolist() == [20_000, 50_000, 60_000]


def test_an_id_of_a_later_recording_is_no_record():
    host = record(10, 10, "allreduce", external_id=91)
    again = row("cpu_op", "aten::mm", 110, 5, pid=1, tid=1, external_id=91)
    ops = recorded(0, host, oneccl(20, 5, external_id=91), again, gemm(120, 5, external_id=91))
    assert (ops.op, ops.busy[0].tolist()) == (("all_reduce",), [120_000])
