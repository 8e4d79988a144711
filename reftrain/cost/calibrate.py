"""Measures this machine: alpha and beta of messages and collectives between real processes, and compute speed.

Processes are forked and joined by Gloo as `reftrain run` joins them on CPUs. One alpha and one beta are fitted to all
operations at once, in relative error, under the cost functions of `links`. The ratio of each operation to the fit is
reported. The result is written as a hardware file.
"""

import datetime as dt
import multiprocessing as mp
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.cost.links import AxisLinks, collective_seconds
from reftrain.documents import CalibrateDocument
from reftrain.errors import MachineError
from reftrain.rank.comm import gather_flat, reduce_scatter_flat
from reftrain.rank.processes import start_helper
from reftrain.thresholds import CALIBRATION_TIMEOUT_S, CARRIED_OVERLAP
from tracekit.locked_folders import temporary

SIZES: Final = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of the larger buffer of each measured operation."""
COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce")
REPEATS: Final = 15


@dataclass(frozen=True)
class Sample:
    """Median seconds of an operation over `ranks` ranks with a larger buffer of `nbytes`."""

    op: str
    ranks: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class LinkFit:
    """Alpha in seconds, beta in seconds a byte, and by operation the samples' time over the fitted one, all sizes."""

    alpha: float
    beta: float
    ratios: dict[str, float]


@dataclass(frozen=True)
class Speed:
    """Rates of one process: FLOP/s of products and of attention, bytes/s of copies, seconds a kernel."""

    matmul: float
    attention_forward: float
    attention_backward: float
    memory: float
    kernel_s: float


def median_seconds(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median seconds of a call, after one call to warm up."""
    function()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def measure_links(ranks: int) -> list[Sample]:
    """Return measured messages between two processes and collectives of `ranks` (2 or more) forked processes.

    Raises `MachineError` when a process does not answer.
    """
    context = mp.get_context("fork")
    queue: Any = context.Queue()
    with temporary("reftrain-calibrate-") as folder:
        job = (ranks, str(folder / "store"), queue, os.getpid())
        processes = [context.Process(target=_rank, args=(r, *job), daemon=True) for r in range(ranks)]
        for process in processes:
            process.start()
        try:
            samples: list[Sample] = queue.get(timeout=CALIBRATION_TIMEOUT_S)
        except Exception as error:
            raise MachineError(
                f"{ranks} processes did not measure in {CALIBRATION_TIMEOUT_S:.0f} s; use fewer ranks"
            ) from error
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
    return samples


def _rank(rank: int, ranks: int, store: str, queue: Any, parent: int) -> None:
    start_helper(parent)
    torch.set_num_threads(1)
    limit = dt.timedelta(seconds=CALIBRATION_TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
    samples = []
    for nbytes in SIZES:
        samples.append(Sample("message", 2, nbytes, _message(rank, nbytes)))
        samples += [Sample(op, ranks, nbytes, _collective(op, ranks, nbytes)) for op in COLLECTIVES]
    dist.barrier()
    if rank == 0:
        queue.put(samples)
    dist.destroy_process_group()


def _message(rank: int, nbytes: int) -> float:
    """Half the time of a message there and back between ranks 0 and 1; the others wait."""
    seconds = 0.0
    if rank < 2:
        buffer = torch.zeros(nbytes // 4)

        def there_and_back() -> None:
            for turn in range(2):
                (dist.send if turn == rank else dist.recv)(buffer, 1 - rank)

        seconds = median_seconds(there_and_back) / 2
    dist.barrier()
    return seconds


def _collective(op: str, ranks: int, nbytes: int) -> float:
    count = max(nbytes // 4 // ranks, 1)
    part, whole = torch.zeros(count), torch.zeros(count * ranks)
    calls: dict[str, Callable[[], object]] = {
        "all_gather": lambda: gather_flat(whole, part),
        "reduce_scatter": lambda: reduce_scatter_flat(part, whole),
        "all_reduce": lambda: dist.all_reduce(whole),
    }
    dist.barrier()
    return median_seconds(calls[op])


def fit_link(samples: Sequence[Sample]) -> LinkFit:
    """Return alpha and beta (both at least 0) fitted to the samples by least squares of the relative errors."""
    from scipy.optimize import nnls

    rows = [_coefficients(sample) for sample in samples]
    matrix = np.array([[a / s.seconds, b / s.seconds] for (a, b), s in zip(rows, samples, strict=True)])
    (alpha, beta), _ = nnls(matrix, np.ones(len(samples)))
    ratios = {}
    for op in dict.fromkeys(sample.op for sample in samples):
        of_op = [(row, sample.seconds) for row, sample in zip(rows, samples, strict=True) if sample.op == op]
        fitted = sum(a * alpha + b * beta for (a, b), _ in of_op)
        ratios[op] = sum(seconds for _, seconds in of_op) / max(fitted, 1e-12)
    return LinkFit(float(alpha), float(beta), {op: float(ratio) for op, ratio in ratios.items()})


def _coefficients(sample: Sample) -> tuple[float, float]:
    """Return the factors of alpha and beta in the time of an operation: `links` with one of them 1."""
    if sample.op == "message":
        return 1.0, float(sample.nbytes)
    alpha = collective_seconds(AxisLinks(sample.ranks, sample.ranks, 1.0, 1.0, 1.0), sample.op, 0.0)
    beta = collective_seconds(AxisLinks(sample.ranks, sample.ranks, 0.0, 1.0, 1.0), sample.op, sample.nbytes)
    return alpha, beta


def measure_speed() -> Speed:
    """Return the measured computation of this process with one thread, in FP32."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _speed()
    finally:
        torch.set_num_threads(threads)


def _speed() -> Speed:
    """Time a square product, attention, a copy of 64 MiB, and a small sum for the time of a kernel."""
    n, heads, width, length = 768, 8, 64, 512
    left, right, small = torch.randn(n, n), torch.randn(n, n), torch.randn(8)
    big = torch.randn(1 << 24)
    target = torch.empty_like(big)
    queries = torch.randn(1, heads, length, width, requires_grad=True)
    work = 4 * heads * width * length * (length + 1) / 2
    forward = median_seconds(
        lambda: F.scaled_dot_product_attention(queries, queries, queries, is_causal=True)
    )

    def both() -> None:
        F.scaled_dot_product_attention(queries, queries, queries, is_causal=True).sum().backward()  # type: ignore[no-untyped-call]

    backward = max(median_seconds(both) - forward, forward)
    return Speed(
        matmul=2 * n**3 / median_seconds(lambda: left @ right),
        attention_forward=work / forward,
        attention_backward=2.5 * work / backward,
        memory=2 * big.nbytes / median_seconds(lambda: target.copy_(big)),
        kernel_s=median_seconds(lambda: small + small, 200),
    )


def memory_gib() -> float:
    """Return the memory of this machine in GiB."""
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


def hardware_toml(ranks: int, fit: LinkFit, speed: Speed) -> str:
    """Return the hardware file of this machine: its ranks are one node, its peaks the measured rates."""
    share = memory_gib() / ranks
    link = f"latency_us = {fit.alpha * 1e6:.3f}\ngb_s = {1e-9 / max(fit.beta, 1e-12):.4f}\nefficiency = 1.0\n"
    operations = "".join(f"{op} = {ratio:.3f}\n" for op, ratio in fit.ratios.items())
    return (
        f"# Measured by reftrain calibrate --ranks {ranks}.\n"
        f'name = "this-machine"\nsource = "measured by reftrain calibrate with {ranks} processes"\n'
        f"node_size = {ranks}\n\n[device]\npeak_tflops = {speed.matmul / 1e12:.9g}\n"
        f"memory_gib = {share:.3f}\nreserved_gib = {min(0.3, share / 4):.3f}\n"
        f"memory_gb_s = {speed.memory / 1e9:.3f}\n\n[efficiency]\nmatmul = 1.0\n"
        f"attention_forward = {speed.attention_forward / speed.matmul:.4f}\n"
        f"attention_backward = {speed.attention_backward / speed.matmul:.4f}\nmemory = 1.0\n"
        f"overlap = {CARRIED_OVERLAP}          # processors carry their transfers themselves\n"
        f"\n[host]\nlaunch_us = {speed.kernel_s * 1e6:.3f}\nkernel_us = {speed.kernel_s * 1e6:.3f}\n"
        f"\n[node]\n{link}\n[network]\n{link}\n[host_link]\nlatency_us = {speed.kernel_s * 1e6:.3f}\n"
        f"gb_s = {speed.memory / 2e9:.3f}          # a copy within the memory: it reads and writes\n"
        f"efficiency = 1.0\nmemory_gb_s = {speed.memory / 1e9:.3f}\n\n[operations]\n{operations}"
    )


def document(
    ranks: int, fit: LinkFit, speed: Speed, samples: Sequence[Sample], toml: str
) -> CalibrateDocument:
    """Return the measurements as `reftrain.calibrate/1`."""
    return {
        "schema": "reftrain.calibrate/1",
        "ranks": ranks,
        "link": {"alpha": fit.alpha, "beta": fit.beta, "ratios": fit.ratios},
        "speed": {
            "matmul": speed.matmul,
            "attention_forward": speed.attention_forward,
            "attention_backward": speed.attention_backward,
            "memory": speed.memory,
            "kernel_s": speed.kernel_s,
        },
        "samples": [
            {"op": s.op, "ranks": s.ranks, "nbytes": s.nbytes, "seconds": s.seconds} for s in samples
        ],
        "toml": toml,
    }
