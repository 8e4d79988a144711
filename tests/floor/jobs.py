"""Three data-parallel ranks that are slow alike, made worse in one way; times in microseconds."""

from tests.slowrank.events import Timeline, write_run

LAYERS, STEPS, RANKS = 4, 3, 3
GEMM_US, TRANSFER_US, LAUNCH_US, AHEAD_US = 1000.0, 100.0, 20.0, 9000.0


class _Device(Timeline):
    """A rank with a host that runs ahead of its device, or `late` behind it."""

    def __init__(self, rank, late):
        super().__init__(rank)
        self.number, self.at = 0, 2 * AHEAD_US
        self.ahead = LAUNCH_US if late else AHEAD_US

    def launched(self, us, name="gemm"):
        self.number += 1
        called = {"correlation": self.number, "pid": 1, "tid": 1}
        self._row(self.at - self.ahead, 1.0, "cuda_runtime", "cudaLaunchKernel", **called)
        self._row(self.at, us, "kernel", name, correlation=self.number, stream=7)
        self.at += us

    def stand(self, us, call):
        """The device idles for so long until its host, which is in the `call` if there is one, launches again."""
        if call:
            self._row(self.at, us - LAUNCH_US, "cuda_runtime", call, pid=1, tid=1)
        self.at += us

    def operator(self, flops):
        """The operator that is called for a product."""
        self._row(self.at - self.ahead - 1, 0.5, "cpu_op", "aten::mm", pid=1, tid=1, flops=flops)

    def again(self, us, flops):
        """A forward that runs again inside a node of autograd, then the node's own work."""
        begin = self.at - self.ahead - 2
        host = {"pid": 1, "tid": 1}
        node = "autograd::engine::evaluate_function: MmBackward0"
        self._row(begin, 20.0, "cpu_op", node, **host)
        self._row(begin + 1, 8.0, "cpu_op", "aten::linear", **host)
        self._row(begin + 2, 4.0, "cpu_op", "aten::mm", flops=flops, **host)
        self.launched(us, "gemm_forward")


def alike(folder, *, small=0, late=0.0, call=None, again=0.0, transfer=1.0, slow=(), flops=None, world=RANKS):
    """A run whose steps hold, `LAYERS` times, a product, what makes it worse, and an all-reduce.

    small: kernels of 2 µs; late: µs for which the host keeps the device idle, in the `call`; again: µs of a forward
    that runs again; transfer: factor on the all-reduce; slow: factor on a kernel called `attention`, by rank; flops: of
    each product, and of the forward that runs again.
    """
    lines = [_Device(rank, late) for rank in range(world)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for _ in range(LAYERS):
            handles = []
            for line in lines:
                line.stand(late, call)
                line.operator(flops)
                line.launched(GEMM_US)
                line.launched(GEMM_US / 2 * (slow[line.rank] if slow else 1), "attention")
                for _ in range(small):
                    line.launched(2.0, "fill")
                if again:
                    line.again(again, flops)
                handles.append(line.post(0))
            end = max(line.at for line in lines) + TRANSFER_US * transfer
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(world))}, {0: "DATA_PARALLEL_GROUP"}, world)
