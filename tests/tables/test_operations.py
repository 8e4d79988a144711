"""Operations of one rank from its events: kinds, steps and arguments, and when the rank computed."""

import pytest

from tests.tables.rows import comm, events, gemm, launch, recorded, recv, row, send, step
from tracekit.rank_events.operation_names import canonical_op
from tracekit.rank_events.operations import rank_ops
from tracekit.rank_events.own_time import own_progress
from tracekit.rank_events.step_marks import NO_STEP


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("_allgather_base", "all_gather"),
        ("ncclDevKernel_AllGather_RING_LL", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("allreduce", "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "all_reduce"),
        ("cross_device_reduce_1stage", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("broadcast", "broadcast"),
        ("reduce", "reduce"),
        ("gather", "gather"),
        ("send 0->1", "send"),
        ("recv 0<-1", "recv"),
        ("wait", "other"),
    ],
)
def test_one_name_for_an_operation(text, op):
    assert canonical_op(text) == op


def test_kernels_that_communicate_are_told_from_those_that_compute():
    ops = recorded(0, gemm(0, 10), comm(10, 5, 3), gemm(15, 5), row("kernel", "nccl:unknown", 30, 2))
    assert ops.on_gpu
    assert ops.op == ("all_reduce", "other")
    assert (ops.start.tolist(), ops.end.tolist()) == ([10_000, 30_000], [15_000, 32_000])
    assert [a.tolist() for a in ops.busy] == [[0, 15_000], [10_000, 20_000]]
    assert ops.group.tolist() == [3, -1]
    assert ops.window == (0, 32_000)


def test_copies_are_compute_and_host_rows_are_not():
    ops = recorded(0, row("gpu_memcpy", "Memcpy DtoH", 0, 2), row("cpu_op", "aten::mm", 0, 50), gemm(5, 1))
    assert [a.tolist() for a in ops.busy] == [[0, 5_000], [2_000, 6_000]]


def test_host_arguments_are_joined_by_external_id():
    host = row(
        "cpu_op", "record_param_comms", 0, 1, collective="_allgather_base", group=7, seq=4, external_id=91
    )
    ops = recorded(0, host, row("kernel", "ncclDevKernel_AllGather", 10, 5, external_id=91), gemm(0, 5))
    assert (ops.op, ops.group.tolist(), ops.seq.tolist()) == (("all_gather",), [7], [4])


def test_a_kernel_belongs_to_the_step_that_launched_it():
    launch = row("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=9)
    late = comm(60, 5, 1, correlation=9)
    ops = recorded(0, step(0, 0, 50), step(1, 50, 50), launch, late, comm(70, 5, 1), gemm(0, 1))
    assert ops.step.tolist() == [0, 1]
    assert ops.steps == {0: (0, 50_000), 1: (50_000, 100_000)}


def test_no_step_before_the_first_and_after_the_last():
    ops = recorded(0, step(3, 100, 100), comm(50, 5, 1), comm(150, 5, 1), comm(250, 5, 1), gemm(0, 1))
    assert ops.step.tolist() == [NO_STEP, 3, NO_STEP]


def test_messages_know_both_ends():
    ops = recorded(1, send(0, 1, 1, 2), recv(2, 1, 0, 1), gemm(0, 1))
    assert ops.op == ("send", "recv")
    assert list(zip(ops.src.tolist(), ops.dst.tolist(), strict=True)) == [(1, 2), (0, 1)]
    assert ops.token[0] == ops.token[1] == "p2p/Float/1048576"


def test_messages_that_name_nobody_stay_undirected():
    assert recorded(1, comm(0, 1, 2, "send"), comm(2, 1, 2, "recv")).op == ("send_recv", "send_recv")


def test_cpu_traces_use_operators_and_annotated_spans():
    span = row("user_annotation", "nccl:all_reduce", 10, 5, collective="allreduce", group=1)
    wrapper = row("cpu_op", "c10d::allreduce_", 9, 8)
    waiting = row("cpu_op", "aten::wait_tensor", 9.5, 7)
    ops = recorded(0, row("cpu_op", "aten::mm", 0, 9), span, wrapper, waiting)
    assert not ops.on_gpu
    assert ops.op == ("all_reduce",)
    assert [a.tolist() for a in ops.busy] == [[0], [9_000]]


def test_no_events_no_operations():
    ops = recorded(4)
    assert (len(ops.start), ops.op, ops.window) == (0, (), (0, 0))


def test_marks_of_a_host_that_ran_ahead_mark_nothing():
    """The host is through three steps when the device begins the second, and nothing tells the launches."""
    kernels = [e for n in range(3) for e in (gemm(100 * n, 60), comm(100 * n + 60, 40, 0))]
    ahead = [step(n, 20 * n, 20) for n in range(3)]
    beside = [step(n, 100 * n, 100) for n in range(3)]
    assert recorded(0, *kernels, *ahead).steps == {}
    assert list(recorded(0, *kernels, *beside).steps) == [0, 1, 2]
    assert list(recorded(0, *kernels, *ahead, launch(1, 7)).steps) == [0, 1, 2]


def test_rare_launches_of_a_host_ahead_tell_nothing():
    """Of three collectives only the last was launched in the window; without marks all are issued where they begin."""
    kernels = [e for n in range(3) for e in (gemm(100 * n + 5, 60), comm(100 * n + 65, 35, 0, correlation=n))]
    rows = events([*kernels, launch(1, 2), step(7, 0, 20)])
    assert rank_ops(0, rows).issued.tolist() == [-2, -1, 1_000]  # two were launched ahead of the window
    assert rank_ops(0, rows, marked=False).issued.tolist() == [65_000, 165_000, 265_000]


def test_what_a_call_itself_runs_is_no_compute():
    """Gloo copies the result on a thread of its own, and a call makes its buffers before it waits."""
    call = row("cpu_op", "record_param_comms", 10, 100, collective="allreduce", group=1, tid=1)
    its = row("cpu_op", "aten::empty", 70, 2, tid=1)
    span = row("user_annotation", "gloo:all_reduce", 80, 28, tid=2)
    copy = row("cpu_op", "aten::copy_", 90, 2, tid=2)
    beside = row("cpu_op", "aten::mm", 30, 5, tid=3)
    ops = recorded(0, row("cpu_op", "aten::mm", 0, 9, tid=1), call, its, span, copy, beside)
    assert ops.op == ("all_reduce",)
    assert [a.tolist() for a in ops.busy] == [[0, 30_000], [9_000, 35_000]]


def test_compute_beside_a_message_on_gloo_counts():
    """The span of a message ends when the host has waited for it, and the host computes until then."""
    posted = row("cpu_op", "c10d::send", 10, 2, tid=1)
    span = row("user_annotation", "gloo:send", 11, 50, tid=1)
    ops = recorded(0, posted, span, row("cpu_op", "aten::mm", 20, 30, tid=1))
    assert len(ops.op) == 1
    assert [a.tolist() for a in ops.busy] == [[20_000], [50_000]]


def call(begin, us, op="allreduce"):
    """An annotated call on the main thread of a CPU."""
    return row("cpu_op", "record_param_comms", begin, us, collective=op, group=1, tid=1)


def transport(begin, us, op="all_reduce"):
    """A collective on a thread of Gloo."""
    return row("user_annotation", f"gloo:{op}", begin, us, tid=2)


def times_of(*rows):
    """(begin, end) of each operation, µs."""
    ops = recorded(0, *rows)
    return list(zip((ops.start // 1000).tolist(), (ops.end // 1000).tolist(), strict=True))


def test_a_call_ends_with_its_transport():
    """Behind it the host was stopped. In front of it the call may have queued."""
    stopped = call(10, 60_000), transport(15, 1000)
    assert times_of(*stopped) == [(10, 1015)]
    assert own_progress(recorded(0, *stopped)).exposed_ns.tolist() == [1_005_000]
    assert times_of(call(10, 60_000), transport(50_000, 9_000)) == [(10, 60_010)]


def test_a_wait_for_a_core_stays_in_its_call():
    assert times_of(call(0, 9_000), transport(3_500, 2_000)) == [(0, 9_000)]


@pytest.mark.parametrize(
    "rows",
    [
        (call(0, 60_000), transport(10, 1000), transport(2_000, 1000)),  # two transports in a call
        (call(0, 60_000), call(20_000, 9_000), transport(10, 1000)),  # one in two calls
        (call(0, 60_000), transport(10, 70_000)),  # the call ends before its transport
        (call(0, 60_000), transport(70_000, 1000)),
        (call(0, 60_000, "send"), transport(10, 1000)),
        (call(0, 60_000), row("user_annotation", "gloo:send", 10, 1000, tid=1)),
    ],
)
def test_a_call_without_a_sure_transport_keeps_its_times(rows):
    assert times_of(*rows)[0] == (0, 60_000)
