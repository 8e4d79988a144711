"""A file system that answers late: FUSE served from /dev/fuse by a process of its own, read-only, for one folder.

It is mounted over the folder in a mount namespace of the calling process, so that no other process sees it. Each page
is a request of its own (no read-ahead), as on a disk whose random reads are slow.
"""

import ctypes
import os
import signal
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x20000
_PRIVATE_ALL: Final = 0x40000 | 0x4000  # MS_PRIVATE | MS_REC
_ENOENT, _ENOSYS = 2, 38
_LOOKUP, _GETATTR, _OPEN, _READ, _RELEASE, _INIT, _OPENDIR, _FORGET = 1, 3, 14, 15, 18, 26, 27, 2
_IN_HEADER: Final = struct.Struct("<IIQQIIII")
_ROOT: Final = 1
_LONGEST: Final = 1 << 20
_FOREVER: Final = 3600
_libc = ctypes.CDLL(None, use_errno=True)


def unavailable() -> str:
    """Return why no slow file system can be mounted here, or nothing."""
    if not Path("/dev/fuse").exists():
        return "no /dev/fuse"
    return "" if os.geteuid() == 0 else "mounting needs root"


@dataclass(frozen=True)
class SlowFolder:
    """Called in a process: from then on `folder` reads `delay_ms` late there, a page at a time."""

    folder: Path
    delay_ms: float

    def __call__(self) -> None:
        """Mount the folder's files over it; raises OSError where the kernel refuses."""
        content = {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}
        _check(_libc.unshare(_CLONE_NEWNS))
        _check(_libc.mount(None, b"/", None, _PRIVATE_ALL, None))
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        _check(_libc.mount(b"slow", os.fsencode(self.folder), b"fuse", 1, options))
        parent = os.getpid()
        if os.fork() == 0:
            _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() == parent:
                serve(device, content, self.delay_ms / 1e3)
            os._exit(0)
        os.close(device)


def _check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve(device: int, content: dict[str, bytes], delay_s: float) -> None:
    """Answer requests of the kernel until the mount is gone."""
    names = list(content)
    while True:
        try:
            request = os.read(device, _LONGEST + 4096)
        except OSError:
            return
        _, code, unique, node, *_ = _IN_HEADER.unpack_from(request)
        if code == _FORGET:
            continue
        body = _reply(code, node, request[_IN_HEADER.size :], content, names, delay_s)
        error, payload = (-body, b"") if isinstance(body, int) else (0, body)
        os.write(device, struct.pack("<IiQ", 16 + len(payload), error, unique) + payload)


def _reply(
    code: int, node: int, body: bytes, content: dict[str, bytes], names: list[str], delay_s: float
) -> bytes | int:
    """Return what answers a request, or the number of an error."""
    if code == _INIT:
        # version 7.31, no read-ahead, no flags, one request in the background, writes of one page
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
    if code == _LOOKUP:
        name = body.rstrip(b"\0").decode()
        if name not in content:
            return _ENOENT
        entry = struct.pack("<QQQQII", names.index(name) + 2, 0, _FOREVER, _FOREVER, 0, 0)
        return entry + _attributes(names.index(name) + 2, content, names)
    if code == _GETATTR:
        return struct.pack("<QII", _FOREVER, 0, 0) + _attributes(node, content, names)
    if code in {_OPEN, _OPENDIR}:
        return struct.pack("<QII", 0, 0, 0)
    if code == _READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        time.sleep(delay_s)
        return content[names[node - 2]][offset : offset + size]
    return b"" if code == _RELEASE else _ENOSYS


def _attributes(node: int, content: dict[str, bytes], names: list[str]) -> bytes:
    size = 0 if node == _ROOT else len(content[names[node - 2]])
    mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o444
    blocks = -(-size // 512)
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
