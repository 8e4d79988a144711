"""Peers of messages, told by ranks in a group, by titles and by groups of two."""

import pytest

from tests.tables.rows import bare, comm, gemm, group, launch, record, recorded, row, title
from tracekit.schema import Group

GROUP = group(0, 2, 5, 7, 9)
PAIR = group(1, 3, 7)


def ends(*rows, rank=7, groups=(GROUP, PAIR)):
    """(op, source, destination) of the one message of `rank`."""
    ops = recorded(rank, *rows, gemm(0, 1), groups=groups)
    return ops.op[0], int(ops.src[0]), int(ops.dst[0])


def call(op, **more):
    """The host's record of a message with its launch and its kernel, which has no peer."""
    return [record(10, 20, op, **more), launch(15, 7), bare(40, 5, 7)]


def test_rank_is_the_place_of_the_peer():
    assert ends(*call("send", group=0, group_rank=1)) == ("send", 7, 5)
    assert ends(*call("recv", group=0, group_rank=3)) == ("recv", 9, 7)


def test_rank_on_the_record_serves_a_kernel_with_arguments():
    host = record(10, 20, "send", group=0, group_rank=0, external_id=4)
    assert ends(host, comm(40, 5, 0, "send", external_id=4)) == ("send", 7, 2)


def test_own_rank_is_no_peer():
    assert ends(*call("send", group=0, group_rank=2)) == ("send_recv", -1, -1)


def test_a_place_beyond_the_group_is_no_peer():
    assert ends(*call("send", group=0, group_rank=4)) == ("send_recv", -1, -1)


def test_global_ranks_go_before_places():
    assert ends(*call("send", group=0, group_rank=0, dst_rank=9)) == ("send", 7, 9)


@pytest.mark.parametrize("begin", [5, 12])
def test_titles_name_places_in_the_group(begin):
    named = title(begin, 40, "nccl:recv 2<-0")
    assert ends(*call("recv", group=0), named) == ("recv", 2, 7)


def test_a_title_on_the_device_tells_as_well():
    named = row("gpu_user_annotation", "nccl:send 2->3", 40, 5, pid=0, tid=9)
    kernel = bare(40, 5, 7, pid=0, tid=9, collective="send", group=0)
    assert ends(kernel, named) == ("send", 7, 9)


def test_a_title_of_another_rank_is_not_believed():
    assert ends(*call("send", group=0), title(12, 4, "nccl:send 1->3")) == ("send_recv", -1, -1)


def test_size_and_own_place_tell_an_unnamed_group():
    rows = [title(10, 20, "nccl:send 2->0"), launch(15, 7), bare(40, 5, 7, group_size=4)]
    assert ends(*rows) == ("send", 7, 2)


def test_the_other_of_two_is_the_peer():
    assert ends(*call("recv", group=1)) == ("recv", 3, 7)


def test_inputs_of_the_call_name_the_peer():
    called = row("cpu_op", "c10d::recv_", 8, 30, pid=1, tid=1, input_peer=3)
    assert ends(*call("recv", group=0), called) == ("recv", 9, 7)


def test_calls_without_records_are_members_of_a_batch():
    called = [
        row("cpu_op", f"c10d::{name}", n, 1, pid=1, tid=1, input_peer=3)
        for n, name in enumerate(("send", "recv_"))
    ]
    issue = record(10, 20, "batch_op_issue", group=0)
    kernel = bare(40, 5, 7, collective="batch_op_issue", group=0)
    ops = recorded(7, *called, issue, launch(15, 7), kernel, groups=(GROUP,))
    assert list(zip(ops.op, ops.src, ops.dst, strict=True)) == [("send", 7, 9), ("recv", 9, 7)]


@pytest.mark.parametrize(
    ("given", "received", "way"), [(64, 0, 1), (0, 64, -1), (64, 64, 0), (None, None, 0)]
)
def test_a_batch_sends_its_input_and_receives_its_output(given, received, way):
    issue = record(10, 20, "batch_op_issue", group=0)
    sizes = {"in_nelems": given, "out_nelems": received}
    kernel = bare(40, 5, 7, collective="batch_op_issue", group=0, **sizes)
    ops = recorded(7, issue, launch(15, 7), kernel, groups=(GROUP,))
    assert (ops.op, ops.way.tolist()) == (("send_recv",), [way])


def test_a_message_nobody_explains_stays_open():
    assert ends(*call("recv", group=0)) == ("send_recv", -1, -1)
    assert ends(*call("recv")) == ("send_recv", -1, -1)


@pytest.mark.parametrize("begin", [5, 12])
def test_titles_serve_traces_without_kernels(begin):
    """On a CPU the host's record is the operation itself."""
    ops = recorded(
        7,
        record(10, 20, "send", group=0),
        title(begin, 40 if begin == 5 else 4, "nccl:send 2->3"),
        groups=(GROUP,),
    )
    assert (ops.op[0], int(ops.src[0]), int(ops.dst[0])) == ("send", 7, 9)


def test_of_groups_alike_in_size_the_pipeline_carries_messages():
    tensor, pipe = (Group(n, (7, *others), (str(n),), (desc,)) for n, others, desc in TWO_OF_FOUR)
    rows = [title(10, 20, "nccl:send 0->1"), launch(15, 7), bare(40, 5, 7, group_size=4)]
    assert ends(*rows, groups=(tensor, pipe)) == ("send", 7, 23)
    assert ends(*rows, groups=(tensor, group(1, *pipe.ranks))) == ("send_recv", -1, -1)


TWO_OF_FOUR = (
    (0, (8, 9, 10), "TENSOR_MODEL_PARALLEL_GROUP"),
    (1, (23, 39, 55), "PIPELINE_MODEL_PARALLEL_GROUP"),
)
