"""Which NCCL call of the host launched a kernel: the one around its launch, else the calls of its group, in order.

Inside `ncclGroupStart` and `ncclGroupEnd` calls launch nothing; their kernels are launched behind them. As many
kernels as calls, each of its kind, belong to them in order. A group of messages has one kernel for all of them and is
left to `rank_events.kernel_records`, which knows such batches.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracekit.ingest.nsys.payloads import MESSAGES
from tracekit.ingest.nsys.survey import NcclCall

Launch = tuple[int, int]
"""When the host launched a kernel, ns, and the kernel's correlation."""


@dataclass
class Joined:
    """calls: by correlation of a kernel the call's id. grouped: kernels of groups without known calls."""

    calls: dict[int, int] = field(default_factory=dict)
    grouped: int = 0


def join_launches(
    calls: Sequence[NcclCall], launches: Mapping[int, Sequence[Launch]], kinds: Mapping[int, str]
) -> Joined:
    """Return the calls of kernels. launches: by thread; kinds: by correlation the kernel's name."""
    joined = Joined()
    by_thread: dict[int, list[NcclCall]] = defaultdict(list)
    for call in calls:
        by_thread[call.thread].append(call)
    for thread, own in launches.items():
        for group, kernels in _groups(_outer(by_thread[thread]), sorted(own), joined.calls):
            if all(call.kind in MESSAGES for call in group):
                continue
            fits = len(group) == len(kernels) and all(
                _carries_out(kinds.get(kernel, ""), call) for call, kernel in zip(group, kernels, strict=True)
            )
            if fits:
                joined.calls.update(zip(kernels, (call.id for call in group), strict=True))
            else:
                joined.grouped += len(kernels)
    return joined


def _carries_out(kernel: str, call: NcclCall) -> bool:
    """Return whether a kernel is of a call's kind by its name: `ncclDevKernel_AllReduce_Sum_f32_RING_LL`."""
    kind = call.kind.replace("_", "").removesuffix("base")
    return kind in kernel.lower().replace("_", "")


def _outer(calls: Sequence[NcclCall]) -> list[NcclCall]:
    """Return the calls of one thread in order, without those inside another one, as ncclBroadcast is in ncclBcast."""
    kept: list[NcclCall] = []
    for call in sorted(calls, key=lambda call: (call.start, -call.end)):
        if not kept or call.end > kept[-1].end:
            kept.append(call)
    return kept


def _groups(
    calls: Sequence[NcclCall], launches: Sequence[Launch], inside: dict[int, int]
) -> Iterator[tuple[list[NcclCall], list[int]]]:
    """Put kernels launched inside a call into `inside`; yield the other ones in a row, with the calls before them."""
    at = 0
    waiting: list[NcclCall] = []
    kernels: list[int] = []
    for moment, correlation in launches:
        new = at
        while new < len(calls) and calls[new].start <= moment:
            new += 1
        if new > at and kernels:
            yield waiting, kernels
            waiting, kernels = [], []
        waiting += calls[at:new]
        at = new
        call = calls[at - 1] if at else None
        if call is not None and moment <= call.end:
            inside[correlation] = call.id
            waiting = waiting[:-1] if waiting and waiting[-1] is call else waiting
        elif waiting:
            kernels.append(correlation)
    if kernels:
        yield waiting, kernels
