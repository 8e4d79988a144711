"""How communication shows in a file: c10d ops, records, titles, launches, kernels."""

from typing import TYPE_CHECKING

from tests.localise.calls import Collective, Kernel, Messages, Part, Wait
from tests.localise.engine import Op
from tests.localise.forms import C10D, Group

if TYPE_CHECKING:
    from tests.localise.kineto import Writer

ENDED_FROM = (2, 9)
"""`nccl:coalesced` is ended from this version on."""
BLIND_FROM = (2, 9)
"""From this version on jobs run with a CUDA whose waits name no stream."""
LOST = 0.1
"""Share of kernels that lose their arguments, where a job loses them."""
LOST_UP_TO = (2, 12)
Args = list[tuple[str, str]]


def joined(args: Args) -> str:
    """Arguments as JSON members."""
    return ", ".join(f'"{key}": {value}' for key, value in args)


def comms_id(ranks: tuple[int, ...], number: int) -> int:
    """An id over the whole range of uint64."""
    return hash((ranks, number)) & 0xFFFF_FFFF_FFFF_FFFF


def kept(writer: "Writer", args: Args) -> str:
    """Arguments of a kernel, or nothing where they got lost."""
    if not writer.host_recorded:
        return ""
    lossy = writer.job.has("lost_args") and writer.forms.torch <= LOST_UP_TO
    if lossy and writer.r.random.random() < LOST:
        return ""
    return "".join(f', "{key}": {value}' for key, value in args)


def collective(w: "Writer", call: Collective, start: int, stop: int, op: Op) -> None:
    """c10d op, record, title, launch and kernel of a collective."""
    forms, group = w.forms, w.r.groups[call.family]
    number = w.count(call)
    cpu_op, record, title = forms.names(call.op)
    common = forms.base(record, group, forms.sizes(call), "BFloat16", call.splits)
    common += forms.sequence(number, comms_id(group.ranks, number))
    args = joined(common + forms.record_only(group, group.ranks.index(w.r.rank), not call.sync))
    w.cpu("cpu_op", cpu_op, start, stop, call.thread)
    external = w.cpu("cpu_op", "record_param_comms", start + 3000, stop - 1500, call.thread, args)
    if forms.torch >= (2, 12) and w.job.has("nested"):
        external = w.cpu("cpu_op", "record_param_comms", start + 4000, stop - 2500, call.thread, args)
    w.cpu("user_annotation", title, start + 6000, stop - 4000, call.thread)
    if call.stream != call.caller:
        await_event(w, call.stream, call.caller, start + 4500, call.thread)
    launch = w.launch("cudaLaunchKernelExC", stop - 14000, stop - 6000, call.thread, external)
    ended(w, op, stop - 5000, call.thread)
    w.gpu(op, forms.kernel(C10D[call.op][3]), launch, external, kept(w, common), grid=16)
    w.annotation(title, op)


def messages(w: "Writer", call: Messages, start: int, stop: int, op: Op) -> None:
    """A batch of messages, or one alone."""
    await_event(w, call.stream, call.caller, start + 4500, "main")
    number = w.count(call)
    group = w.r.groups[call.family]
    if call.batched:
        (issue if w.forms.nccl2 else batch)(w, call, start, stop, op, group, number)
        return
    forms, part = w.forms, call.parts[0]
    common, only = message_args(w, part, group, number)
    external = message_record(w, part, group, (start, stop), common + only)
    title = forms.message_title(part, group, w.r.rank)
    w.cpu("user_annotation", title, start + 6000, stop - 4000, "main")
    launch = w.launch("cudaLaunchKernelExC", stop - 14000, stop - 6000, "main", external)
    ended(w, op, stop - 4500, "main")
    w.gpu(op, forms.kernel("SendRecv"), launch, external, kept(w, common), grid=w.job.costs.channels)
    w.annotation(title, op)


def message_args(w: "Writer", part: Part, group: Group, number: int) -> tuple[Args, Args]:
    """Keys of a message's kernel, and those of its record alone."""
    forms = w.forms
    name = "send" if part.send else "recv"
    common = forms.base(name, group, (part.elements, part.elements), "BFloat16")
    common += forms.peer(part, group) + forms.sequence(number, comms_id(group.ranks, number))
    return common, forms.record_only(group, group.ranks.index(part.peer), asynchronous=True)


def message_record(w: "Writer", part: Part, group: Group, times: tuple[int, int], args: Args) -> int:
    """c10d::send or recv_ around the record; the record's External id, or the op's before 2.2."""
    start, stop = times
    inputs = ""
    if w.job.has("shapes"):
        peer = group.ranks.index(part.peer)
        inputs = f'"Concrete Inputs": ["", "", "{peer}", "0"], "Input Dims": [[], [], [], []]'
    outer = w.cpu("cpu_op", "c10d::send" if part.send else "c10d::recv_", start, stop, "main", inputs)
    if w.forms.torch < (2, 2):
        return outer
    return w.cpu("cpu_op", "record_param_comms", start + 3000, stop - 1500, "main", joined(args))


def issue(w: "Writer", call: Messages, start: int, stop: int, op: Op, group: Group, number: int) -> None:
    """A batch of nccl2: one record without peers, whose arguments the kernel has too."""
    forms = w.forms
    sent = sum(part.elements for part in call.parts if part.send)
    taken = sum(part.elements for part in call.parts if not part.send)
    common = forms.base("batch_op_issue", group, (sent, taken), "BFloat16")
    common += forms.sequence(number, comms_id(group.ranks, number))
    only = forms.record_only(group, group.ranks.index(w.r.rank), asynchronous=True)
    external = w.cpu("cpu_op", "record_param_comms", start + 3000, stop - 1500, "main", joined(common + only))
    w.cpu("user_annotation", "batch_op_issue", start + 5000, stop - 3000, "main")
    launch = w.launch("cudaLaunchKernelExC", stop - 14000, stop - 6000, "main", external)
    ended(w, op, stop - 4500, "main")
    w.gpu(op, forms.kernel("SendRecv"), launch, external, kept(w, common), grid=w.job.costs.channels)
    w.annotation("batch_op_issue", op)


def batch(w: "Writer", call: Messages, start: int, stop: int, op: Op, group: Group, number: int) -> None:
    """batch_isend_irecv: records of all messages, then one launch inside `nccl:coalesced`."""
    slot = (stop - start) * 2 // (3 * len(call.parts) + 1)
    at = start
    for part in call.parts:
        common, only = message_args(w, part, group, number)
        message_record(w, part, group, (at, at + slot - 1000), common + only)
        at += slot
    late = stop if w.forms.torch >= ENDED_FROM else stop + w.r.random.choice((0, 10**5, 10**7, 10**8))
    w.cpu("user_annotation", "nccl:coalesced", at, late, "main")
    launch = w.launch("cudaLaunchKernelExC", stop - 12000, stop - 5000, "main", 0)
    ended(w, op, stop - 4500, "main")
    w.gpu(op, w.forms.kernel("SendRecv"), launch, 0, grid=w.job.costs.channels)
    w.annotation("nccl:coalesced", op)


def wait(w: "Writer", call: Wait, start: int, stop: int) -> None:
    """Work.wait: a record of its own for asynchronous collectives, around cudaStreamWaitEvent."""
    external = 0
    waited = w.place.program[call.handle]
    told = w.forms.torch >= (2, 4) and not w.forms.nccl2
    if told and isinstance(waited, Collective) and not waited.sync:
        args = joined(w.forms.base("wait", Group("", "", (0,)), (0, 0), "Byte"))
        external = w.cpu("cpu_op", "record_param_comms", start, stop, call.thread, args)
    correlation = w.launch("cudaStreamWaitEvent", start + 1000, stop - 1000, call.thread, external)
    if isinstance(waited, Kernel | Collective | Messages):
        told_wait(w, correlation, call.stream, waited.stream, w.recorded.get(call.handle, -1), (start, stop))


def await_event(w: "Writer", stream: str, other: str, at: int, thread: str) -> None:
    """A stream waits for all that another one has been given: an event and a wait, in recordings that tell."""
    if shows_waits(w):
        w.correlation += 2
        w.call("cudaEventRecord", w.correlation - 1, at, at + 200, thread)
        w.call("cudaStreamWaitEvent", w.correlation, at + 300, at + 500, thread)
        told_wait(w, w.correlation, stream, other, w.correlation - 1, (at + 300, at + 500))


def shows_waits(w: "Writer") -> bool:
    """Whether `cuda_sync` events are recorded."""
    return w.job.has("cuda_sync") and w.forms.torch >= (2, 4) and not w.forms.rocm


def told_wait(
    w: "Writer", correlation: int, stream: str, other: str, record: int, times: tuple[int, int]
) -> None:
    """A `cuda_sync` event; with CUDA 12.9 and later it does not tell for whom the stream waits."""
    if not shows_waits(w):
        return
    blind = w.forms.torch >= BLIND_FROM
    streams = w.r.streams
    args = (
        f'"cuda_sync_kind": "Stream Wait Event", "stream": {streams[stream]}, '
        f'"correlation": {correlation}, "device": {w.r.device}, "context": 1, '
        f'"wait_on_stream": {-1 if blind else streams[other]}, '
        f'"wait_on_cuda_event_record_corr_id": {-1 if blind else record}, "wait_on_cuda_event_id": 7'
    )
    w.span("cuda_sync", "Stream Wait Event", w.r.device, streams[stream], *times, args)


def ended(w: "Writer", op: Op, at: int, thread: str) -> None:
    """The event that marks the end of an operation on its stream, in recordings that tell waits."""
    if shows_waits(w):
        w.correlation += 1
        w.recorded[op.index] = w.correlation
        w.call("cudaEventRecord", w.correlation, at, at + 200, thread)
