"""A rank's trace as Kineto writes it: what the host called, and what the device did."""

import gzip
import json
from pathlib import Path

from tests.shapes.calls import (
    Call,
    CollectiveCall,
    GraphCall,
    KernelCall,
    Message,
    MessagesCall,
    RuntimeCall,
    SpinCall,
    SyncCall,
)
from tests.shapes.comms import (
    CALLS,
    NAME_SINCE,
    SEND_RECEIVE,
    SIZE_SINCE,
    Args,
    collective_args,
    host_args,
    kernel_name,
    message_args,
    title,
)
from tests.shapes.document import head, label
from tests.shapes.events import BASE_NS
from tests.shapes.rocm import amd_launch
from tests.shapes.sheet import Recording, Sheet

COALESCED_ENDS_SINCE = (2, 9)
"""Before this torch, the title of a batch ended late."""
LATE_US = 1e4
"""How far beyond the window a collective's kernel may end."""
BATCH, ALL_TO_ALL, RING = 8, 16, 24
"""Blocks of a kernel of messages, of an all-to-all, of another collective."""


def write(recording: Recording, path: Path) -> None:
    """Write the trace of a rank, packed where the name says so."""
    data = Writer(recording).text(str(path).removesuffix(".gz")).encode()
    path.write_bytes(gzip.compress(data, compresslevel=1, mtime=0) if path.suffix == ".gz" else data)


class Writer(Sheet):
    """A whole trace."""

    def text(self, name: str) -> str:
        """The whole file."""
        for call in self.rank.calls:
            seen = self.inside(self.begin[call.host]) and self.inside(self.end[call.host])
            if isinstance(call, KernelCall):
                self.kernel_call(call, seen=seen)
            elif isinstance(call, CollectiveCall):
                self.collective_call(call, seen=seen)
            elif isinstance(call, MessagesCall):
                self.messages_call(call, seen=seen)
            elif isinstance(call, SpinCall):
                self.spin_call(call, seen=seen)
            elif isinstance(call, GraphCall):
                self.graph_call(call, seen=seen)
            elif seen:
                self.runtime_call(call)
        self.spans()
        label(self)
        self.events.window(self.first_us, self.last_us)
        tail = f'\n  ],\n  "traceName": {json.dumps(name)}'
        if self.torch >= NAME_SINCE:
            tail += f',\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS}'
        return head(self.recording) + '  "traceEvents": [\n' + ",\n".join(self.events.texts) + tail + "\n}\n"

    def kernel_call(self, call: KernelCall, *, seen: bool) -> None:
        """A launch and its kernel, each where it was in the window."""
        graph_begin, begin, end = self.begin[call.node], self.begin[call.host], self.end[call.host]
        if not seen and not self.inside(graph_begin):
            return
        correlation = self.correlated(self.chance.randrange(1, 4))
        external = None
        if seen:
            if call.thread and call.op.startswith("aten") and self.habits.host:
                more: Args = {"Sequence number": correlation, "Fwd thread id": 1}
                name = "autograd::engine::evaluate_function: MmBackward0"
                self.operator(name, call.thread, begin + 0.3, end - 0.1, more)
            external = self.operator(call.op, call.thread, begin + 0.6, end - 0.3)
            launched = (end - min(4.4, (end - begin) * 0.5), end - 0.4)
            launch = amd_launch(call.launch, call.name) if self.habits.amd else call.launch
            self.runtime(launch, call.thread, launched, correlation, external)
        if not self.inside(graph_begin):
            return
        times = (graph_begin, self.end[call.node])
        if call.copied:
            self.copy(call.name, call.stream, times, correlation, external, call.copied)
        else:
            self.kernel(call.name, call.stream, times, correlation, external)

    def collective_call(self, call: CollectiveCall, *, seen: bool) -> None:
        """A collective's call and its kernel."""
        enter, leave = self.begin[call.enter], self.begin[call.leave]
        if not seen and not self.inside(enter):
            return
        correlation = self.correlated(self.chance.randrange(2, 6))
        external = None
        args = collective_args(call, self.torch)
        _, annotated, kernel = CALLS[call.op]
        if seen:
            external = self.collective_host(call, args)
            correlation = self.correlation
        if self.inside(enter) and self.end[call.leave] <= self.last_us + LATE_US:
            name = kernel_name(kernel, call.dtype, self.torch)
            told = args if seen and self.habits.host else None
            blocks = ALL_TO_ALL if call.op.startswith("all_to") else RING
            self.kernel(name, call.stream, (enter, leave), correlation, external, told, blocks=blocks)
            self.device_span(annotated, call.stream, (enter, leave), external)

    def collective_host(self, call: CollectiveCall, args: Args) -> int:
        """The id of a collective's call; its launch has the last correlation."""
        thread, begin, end = call.thread, self.begin[call.host], self.end[call.host]
        operator, annotated, _ = CALLS[call.op]
        place = call.group.place(self.recording.rank)
        more = host_args(call.group, place, self.torch, asynchronous=not call.waited)
        self.operator(operator, thread, begin + 0.4, end - 0.2)
        external = self.operator("record_param_comms", thread, begin + 1.2, end - 0.6, args | more)
        self.annotation(annotated, thread, begin + 2.0, end - 1.0)
        if call.stream.startswith("nccl"):
            event, wait = (begin + 2.2, begin + 2.9), (begin + 3.0, begin + 3.6)
            self.runtime("cudaEventRecord", thread, event, self.correlated(), external, arrow=False)
            self.runtime("cudaStreamWaitEvent", thread, wait, self.correlated(), external, arrow=False)
        launch = "cudaLaunchKernelExC" if self.torch >= SIZE_SINCE else "cudaLaunchKernel"
        launched = (end - min(8.0, (end - begin) * 0.4), end - 1.4)
        self.runtime(launch, thread, launched, self.correlated(), external)
        return external

    def messages_call(self, call: MessagesCall, *, seen: bool) -> None:
        """A call that sends or receives, and its kernel."""
        enter, leave = self.begin[call.enter], self.begin[call.leave]
        if not seen and not self.inside(enter):
            return
        correlation = self.correlated(self.chance.randrange(2, 6))
        external = None
        if seen:
            external = self.messages_host(call)
            correlation = self.correlation
        if not self.inside(enter):
            return
        alone = call.messages[0]
        told = message_args(call, alone, self.torch) if external and self.habits.host else None
        name = kernel_name(SEND_RECEIVE, call.dtype, self.torch)
        self.kernel(name, call.stream, (enter, leave), correlation, external, told, blocks=BATCH)
        self.device_span(title(call, self.recording.rank, alone), call.stream, (enter, leave), external)

    def messages_host(self, call: MessagesCall) -> int | None:
        """The id that the kernel of a call carries, which a batch's does not; its launch has the last correlation."""
        thread, begin, end = call.thread, self.begin[call.host], self.end[call.host]
        each = (end - begin - 9.0) / len(call.messages)
        external = None
        for number, message in enumerate(call.messages):
            external = self.message_host(call, message, begin + 0.4 + number * each, each - 0.3)
        launched = (begin + (end - begin) * 0.2, begin + (end - begin) * 0.2 + 3.0)
        if call.batched:
            external = None
            launched = (end - 7.0, end - 1.4)
            if self.torch >= SIZE_SINCE:
                late = min(self.last_us, end + 400.0)
                over = end - 0.4 if self.torch >= COALESCED_ENDS_SINCE else late
                self.annotation("nccl:coalesced", thread, end - 8.2, over)
        self.runtime("cudaLaunchKernelExC", thread, launched, self.correlated(), external)
        return external

    def message_host(self, call: MessagesCall, message: Message, begin: float, lasting: float) -> int | None:
        """The id of one message's record, None where torch keeps none."""
        place, end, external = call.group.place(message.peer), begin + lasting, None
        inputs: Args = {"Concrete Inputs": ["", "", str(place), "0"], "Input Dims": [[], [], [], []]}
        name = "c10d::send" if message.send else "c10d::recv_"
        self.operator(name, call.thread, begin, end, inputs if self.habits.shapes else None)
        if self.torch >= SIZE_SINCE:
            args = message_args(call, message, self.torch)
            args |= host_args(call.group, place, self.torch, asynchronous=True)
            external = self.operator("record_param_comms", call.thread, begin + 0.3, end - 0.2, args)
            if not call.batched:
                named = title(call, self.recording.rank, message)
                self.annotation(named, call.thread, begin + 0.5, end - 0.3)
        return external

    def spin_call(self, call: SpinCall, *, seen: bool) -> None:
        """A kernel that waits for its peers, of which no record tells anything."""
        enter, leave, end = self.begin[call.enter], self.begin[call.leave], self.end[call.host]
        if not seen and not self.inside(enter):
            return
        correlation = self.correlated(self.chance.randrange(1, 4))
        if seen:
            launched = (end - min(4.4, (end - self.begin[call.host]) * 0.5), end - 0.4)
            self.runtime("cudaLaunchKernelExC", call.thread, launched, correlation)
        if self.inside(enter) and self.end[call.leave] <= self.last_us + LATE_US:
            self.kernel(call.name, call.stream, (enter, leave), correlation, None, blocks=RING)

    def graph_call(self, call: GraphCall, *, seen: bool) -> None:
        """The launch of a graph, and all its kernels with the launch's correlation."""
        inside = [(node, name) for node, name in call.nodes if self.inside(self.begin[node])]
        if not seen and not inside:
            return
        correlation = self.correlated(self.chance.randrange(1, 4))
        if seen:
            launched = (self.begin[call.host] + 0.5, self.end[call.host] - 0.5)
            self.runtime("cudaGraphLaunch", call.thread, launched, correlation)
        number = 7 + call.stream.count("graph")
        for place, (node, name) in enumerate(inside):
            args: Args = {"graph id": number, "graph node id": (number << 32) + place}
            self.kernel(name, call.stream, (self.begin[node], self.end[node]), correlation, None, args)

    def runtime_call(self, call: Call) -> None:
        """A call that waits for the device, or lets a stream wait."""
        begin, end = self.begin[call.host], self.end[call.host]
        if isinstance(call, SyncCall):
            self.runtime(call.name, call.thread, (self.end[call.begin], end), self.correlated(2))
        elif isinstance(call, RuntimeCall):
            times = (begin + 0.5, end - 0.5)
            self.runtime(call.name, call.thread, times, self.correlated(), arrow=False)

    def spans(self) -> None:
        """Annotations of the program, and the Python functions around them."""
        times = [(span, self.begin[span.first], self.end[span.last]) for span in self.rank.spans]
        shown = [found for found in times if self.inside(found[1]) and self.inside(found[2])]
        for span, begin, end in shown:
            self.annotation(span.name, span.thread, begin, end, span.category)
        if self.habits.stack and self.habits.host:
            for number, (span, begin, end) in enumerate(shown, 1):
                name = f"train.py({100 + number % 7}): train_step"
                args: Args = {"Python id": number, "Python parent id": None}
                self.numbered("python_function", name, span.thread, (begin - 0.2, end + 0.2), args)
