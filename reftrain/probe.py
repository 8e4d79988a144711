"""Tests each rank without the job, so that device, host and link are separated; started as the job is started.

Needs PyTorch alone: `tracekit next` prints this file with a plan of its own in `PLAN`. Each rank first works alone, at
the same time as all others; then groups of the mesh reduce one tensor, and pairs send one, each direction by itself.
Rank 0 prints each rank beside its peers.
"""

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PLAN: dict[str, Any] = {"suspects": [], "groups": {}, "hosts": {}, "why": ""}
"""Ranks to compare with the others; by axis the groups that reduce, as lists of ranks; the hosts on which the job ran
the suspects, where they are known; and the finding behind it."""

LONGER = 1.1
"""Times the peers' median from which a rank is slow alone: clocks vary by 1 to 2 %."""
LONGER_LINK = 1.25
"""Times the peers' median from which a group is slow."""
SPREADS = 6.0
"""Spreads of the peers (median deviation) that a slow one is beyond their median as well."""
OVERLOADED = 100.0
"""Milliseconds a second without a processor, on the median rank, from which times of hosts say nothing."""
MOST_PAIRS = 64
"""Directions between two ranks that are tested: each takes a communicator."""
WARM_UPS = 3
"""Untimed runs before the timed ones."""
NS_PER_S = 1e9
WAITED = "no processor, ms/s"
TESTS = ("matrix product, ms", "copy, ms", "launch, µs", WAITED)
"""What each rank does alone; the first two need its device, the others its host."""
WAITED_MS = 10.0
"""Milliseconds a second without a processor, beyond its peers, from which a host is slow."""
STOPPED_NS = 5_000_000
"""Time between two readings of the clock from which the process had no processor."""


def main(plan: dict[str, Any] | None = None) -> list[str]:
    """Run all tests of a plan, and return the lines that rank 0 prints; empty on other ranks."""
    plan = PLAN if plan is None else plan
    own = not dist.is_initialized()
    if own:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        _check_world(plan, dist.get_world_size())
        device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            if torch.cuda.is_available()
            else None
        )
        mine: dict[str, Any] = {"host": socket.gethostname(), **alone(device)}
        mine["groups"] = reductions(plan["groups"], device)
        mine["messages"] = messages(pairs_of(plan), device)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        return report(plan, every) if dist.get_rank() == 0 else []
    finally:
        if own:
            dist.destroy_process_group()


def _check_world(plan: dict[str, Any], world: int) -> None:
    """Raise SystemExit where the plan names a rank that this job does not have."""
    groups = [ranks for members in plan["groups"].values() for ranks in members]
    last = max((rank for ranks in [plan["suspects"], *groups] for rank in ranks), default=0)
    if last >= world:
        raise SystemExit(
            f"the plan names rank {last}, but {world} ranks were started: start all ranks of the job"
        )


def alone(device: torch.device | None) -> dict[str, float]:
    """Return what this rank takes alone: matrix product and copy (ms), launch (µs), time without a processor (ms/s)."""
    size, kind = (8192, torch.bfloat16) if device else (384, torch.float32)
    a = torch.ones(size, size, dtype=kind, device=device)
    source = torch.ones((1 << 28) if device else (1 << 22), dtype=torch.float32, device=device)
    target, small = torch.empty_like(source), torch.ones(8, device=device)
    took = (
        _least_ms(lambda: a @ a, device),
        _least_ms(lambda: target.copy_(source), device),
        _least_ms(lambda: [small.add_(1.0) for _ in range(1000)], None),
        _without_processor(1.0),
    )
    return dict(zip(TESTS, took, strict=True))


def reductions(groups: dict[str, list[list[int]]], device: torch.device | None) -> dict[str, float]:
    """Return how long each group of this rank takes to reduce one tensor, ms; all ranks make all groups in order."""
    found: dict[str, float] = {}
    tensor = torch.ones((1 << 26) if device else (1 << 18), device=device)
    for axis, members in groups.items():
        made = [dist.new_group(ranks) for ranks in members]
        for ranks, group in zip(members, made, strict=True):
            if dist.get_rank() in ranks:
                found[f"{axis} {ranks}"] = _least_ms(partial(dist.all_reduce, tensor, group=group), device, 5)
        dist.barrier()
    return found


def pairs_of(plan: dict[str, Any]) -> list[tuple[int, int]]:
    """Return (source, target) of the messages to test: suspects with their neighbours in each group, and peers' pairs.

    Both directions of each. A group without a suspect gives its first two ranks.
    """
    suspects, found = set(plan["suspects"]), {}
    for ranks in (ranks for members in plan["groups"].values() for ranks in members if len(ranks) > 1):
        beside = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))[: len(ranks) if len(ranks) > 2 else 1]
        mine = [pair for pair in beside if suspects & set(pair)] or beside[:1]
        found.update(dict.fromkeys(way for a, b in mine for way in ((a, b), (b, a))))
    return sorted(found, key=lambda pair: (not suspects & set(pair), pair))[:MOST_PAIRS]


def messages(pairs: Sequence[tuple[int, int]], device: torch.device | None) -> dict[str, float]:
    """Return how long each message to this rank takes from when it is asked for, ms; one pair at a time."""
    found: dict[str, float] = {}
    ask, tensor = torch.ones(1, device=device), torch.ones((1 << 26) if device else (1 << 18), device=device)

    def answer(target: int) -> None:
        dist.recv(ask, target)
        dist.send(tensor, target)

    def fetch(source: int) -> None:
        dist.send(ask, source)
        dist.recv(tensor, source)

    for source, target in pairs:
        if dist.get_rank() == source:
            _least_ms(partial(answer, target), device, 5)
        elif dist.get_rank() == target:
            found[f"{source} to {target}"] = _least_ms(partial(fetch, source), device, 5)
        dist.barrier()
    return found


def report(plan: dict[str, Any], every: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines for a reader: each suspect and each slow rank beside the median of the others."""
    lines = [f"probe of {len(every)} ranks" + (f": {plan['why']}" if plan["why"] else "")]
    suspects, slow = set(plan["suspects"]), []
    moved = _moved(plan["hosts"], every)
    lines += moved
    for name in TESTS:
        least = WAITED_MS if name == WAITED else 0.0
        for rank, (value, usual, late) in enumerate(_beside([found[name] for found in every], LONGER, least)):
            if late:
                slow.append((rank, name))
            if late or rank in suspects:
                mark = "SLOW" if late else "as its peers"
                lines.append(
                    f"rank {rank} ({every[rank]['host']})  {name} {value:.3f}, peers {usual:.3f}: {mark}"
                )
    links = _links(plan["groups"], every)
    lines += [f"group {name}  {ms:.3f} ms, peers {usual:.3f}: SLOW" for name, ms, usual in links]
    sent = _slow_messages(every)
    lines += [f"message {name}  {ms:.3f} ms, peers {usual:.3f}: SLOW" for name, ms, usual in sent]
    if moved:
        return [
            *lines,
            "conclusion: none of the job's places: start each rank on its host (--node-rank), and repeat this",
        ]
    if statistics.median(found[WAITED] for found in every) > OVERLOADED:
        return [*lines, "conclusion: the hosts are overloaded: stop what else runs there, and repeat this"]
    return [*lines, _conclusion(suspects, slow, [name for name, *_ in links], [name for name, *_ in sent])]


def _moved(hosts: dict[str, str], every: Sequence[dict[str, Any]]) -> list[str]:
    """The suspects that do not run on the host of the job, as lines: what is measured is then of another machine."""
    ran = {rank: every[int(rank)]["host"] for rank in hosts}
    return [
        f"rank {rank} runs on {ran[rank]} here, and ran on {host} in the job"
        for rank, host in hosts.items()
        if ran[rank].lower().partition(".")[0] != host.lower().partition(".")[0]
    ]


def _slow_messages(every: Sequence[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """The messages that take longer than the others: (name, ms, the others' median)."""
    took = {name: ms for found in every for name, ms in found["messages"].items()}
    both = zip(took, _beside(list(took.values()), LONGER_LINK), strict=True)
    return [(name, ms, usual) for name, (ms, usual, late) in both if late]


def _links(
    groups: dict[str, list[list[int]]], every: Sequence[dict[str, Any]]
) -> list[tuple[str, float, float]]:
    """The groups that take longer than the other groups of their axis: (name, ms, the others' median)."""
    found = []
    for axis, members in groups.items():
        names = [f"{axis} {ranks}" for ranks in members]
        took = [min(every[r]["groups"][n] for r in m) for n, m in zip(names, members, strict=True)]
        both = zip(names, _beside(took, LONGER_LINK), strict=True)
        found += [(name, ms, usual) for name, (ms, usual, late) in both if late]
    return found


def _conclusion(
    suspects: set[int], slow: Sequence[tuple[int, str]], links: Sequence[str], sent: Sequence[str]
) -> str:
    """One sentence: what the tests separate."""
    device = sorted({r for r, name in slow if name in TESTS[:2]})
    host = sorted({r for r, name in slow if name in TESTS[2:]} - set(device))
    parts = [f"the device of rank {_listed(device)} is slow alone"] if device else []
    parts += [f"the host of rank {_listed(host)} is slow alone"] if host else []
    parts += [f"the link of {', '.join(links)} is slow"] if links else []
    parts += [f"the link from rank {', '.join(sent)} is slow"] if sent else []
    if parts:
        return "conclusion: " + "; ".join(parts)
    named = f" of rank {_listed(sorted(suspects))}" if suspects else ""
    return (
        f"conclusion: no device, host or link{named} is slow now: look at the work (data, stage, experts), or repeat "
        "this while the job is slow"
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _beside(values: Sequence[float], factor: float, least: float = 0.0) -> list[tuple[float, float, bool]]:
    """Each value with the median of the others, and whether it is beyond them by factor, spread and `least`."""
    result = []
    for place, value in enumerate(values):
        others = [*values[:place], *values[place + 1 :]] or [value]
        usual = statistics.median(others)
        spread = statistics.median([abs(other - usual) for other in others])
        late = value > factor * usual and value - usual > max(SPREADS * spread, least)
        result.append((value, usual, late))
    return result


def _least_ms(work: Callable[[], object], device: torch.device | None, times: int = 20) -> float:
    """The shortest time of `work` after warm-up, ms, until the device is done: other load only adds to it."""
    spent = []
    for turn in range(times + WARM_UPS):
        if device:
            torch.cuda.synchronize(device)
        begin = time.perf_counter_ns()
        work()
        if device:
            torch.cuda.synchronize(device)
        if turn >= WARM_UPS:
            spent.append((time.perf_counter_ns() - begin) / 1e6)
    return min(spent)


def _without_processor(seconds: float) -> float:
    """For how long this process got no processor while it only read the clock, ms a second."""
    begin = last = time.perf_counter_ns()
    waited = 0
    while last - begin < seconds * NS_PER_S:
        now = time.perf_counter_ns()
        waited += now - last if now - last > STOPPED_NS else 0
        last = now
    return waited / 1e6 / seconds


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PLAN = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write("".join(f"{line}\n" for line in main()))
