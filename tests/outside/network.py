"""A link that delays and loses packets where the kernel has no netem: a rank's network namespace behind tun devices.

A process carries the packets between the device of this namespace and that of the rank's, each `delay_ms` late, and
drops some of them; TCP sends these again.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.ranks.pool import RankPool

HERE, THERE = "10.177.0.1", "10.177.0.2"
_TUNSETIFF: Final = 0x400454CA
_TUN, _NO_INFO = 0x1, 0x1000
_CLONE_NEWNET: Final = 0x40000000
_MTU: Final = 9000


def unavailable() -> str:
    """Return why no namespace with such a link can be made here, or nothing."""
    if not Path("/dev/net/tun").exists():
        return "no /dev/net/tun"
    if os.geteuid():
        return "a network namespace needs root"
    made = _ip("netns", "add", name := f"probe{os.getpid()}")
    _ip("netns", "del", name)
    return "" if made else "ip netns add is refused"


@dataclass(frozen=True)
class Namespace:
    """Called in a process: moves it into a network namespace."""

    name: str

    def __call__(self) -> None:
        """Enter it; raises OSError."""
        with Path(f"/run/netns/{self.name}").open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def late_link(
    pool: RankPool, folder: Path, delay_ms: float, loss: float
) -> Iterator[tuple[Namespace, str, str]]:
    """Yield the namespace behind the link, and the names of both devices; they last as long as the block."""
    name = f"outside{os.getpid()}"
    _ip("netns", "add", name)
    ready = folder / "link"
    ready.unlink(missing_ok=True)
    carrier = pool.start(carry, name, delay_ms, loss, ready)
    try:
        end = time.monotonic() + 30
        while not ready.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"no link: {carrier.said()[-300:]}")
            time.sleep(0.02)
        here, there = ready.read_text().split()
        yield Namespace(name), here, there
    finally:
        carrier.kill()
        _ip("netns", "del", name)


def carry(name: str, delay_ms: float, loss: float, ready: Path) -> None:
    """Make both devices, then carry packets between them until this process is killed."""
    here, there = _device(f"h{os.getpid()}"), _device(f"t{os.getpid()}")
    _ip("link", "set", there[1], "netns", name)
    inside = ("netns", "exec", name, "ip")
    for prefix, device, own, other in (((), here[1], HERE, THERE), (inside, there[1], THERE, HERE)):
        _ip(*prefix, "addr", "add", own, "peer", other, "dev", device)
        _ip(*prefix, "link", "set", device, "mtu", str(_MTU), "up")
    _ip(*inside, "link", "set", "lo", "up")
    part = ready.with_suffix(".part")
    part.write_text(f"{here[1]} {there[1]}")
    part.replace(ready)
    rng, waiting, number = random.Random(7), list[tuple[float, int, int, bytes]](), 0
    across = {here[0]: there[0], there[0]: here[0]}
    while True:
        rest = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for device in select.select(list(across), [], [], rest)[0]:
            packet = os.read(device, 1 << 17)
            number += 1
            if rng.random() >= loss:
                heapq.heappush(waiting, (time.monotonic() + delay_ms / 1e3, number, across[device], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(waiting[0][2], heapq.heappop(waiting)[3])


def _device(name: str) -> tuple[int, str]:
    """Return a new tun device: (its descriptor, its name)."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN | _NO_INFO))
    return descriptor, name


def _ip(*arguments: str) -> bool:
    """Call `ip`; return whether it succeeded."""
    return subprocess.run(["ip", *arguments], capture_output=True, check=False, timeout=20).returncode == 0
