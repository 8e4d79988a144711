"""Writes a simulated run as Kineto does: files, layout, names and metadata as in recordings of GPU jobs."""

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.generator.forms import FORMS
from tests.generator.program import SYNC
from tests.generator.rows import BASE, RankRows

if TYPE_CHECKING:
    from tests.generator.case import Case

NAMES = (
    "rank{rank}_trace.json",
    "rank-{rank}.Mar_20_09_48_43.{pid}.pt.trace.json",
    "worker{rank}_step_12.1774000123{rank:03d}.pt.trace.json",
    "trace_{rank:05d}.json",
)
OPAQUE = "node{host}_{pid}.1774000{salt:06d}.pt.trace.json"


def write_case(case: "Case", folder: Path) -> list[Path]:
    """Write every rank's file(s); truncation and file names follow `case.capture`."""
    folder.mkdir(parents=True, exist_ok=True)
    capture, paths = case.capture, []
    for rank in range(case.job.mesh.world):
        if rank in capture.missing:
            continue
        writer = _RankFile(case, rank)
        for part, text in enumerate(writer.files()):
            path = folder / writer.file_name(part)
            data = text.encode()
            if capture.gz:
                path = path.with_name(path.name + ".gz")
                data = gzip.compress(data, 1, mtime=0)
            if rank in capture.truncated:
                data = data[: int(len(data) * capture.truncated[rank])]
            path.write_bytes(data)
            paths.append(path)
    return paths


class _RankFile(RankRows):
    """One rank's file, or two where its steps are split."""

    def file_name(self, part: int) -> str:
        scheme = self.capture.names
        if scheme < len(NAMES):
            name = NAMES[scheme].format(rank=self.shown, pid=self.pid)
        else:
            name = OPAQUE.format(host=self.host, pid=self.pid, salt=(self.shown * 7919 + 13) % 999983)
        return name if not self.capture.split else name.replace(".json", f".part{part}.json")

    def files(self) -> list[str]:
        """The JSON text of this rank's file, or of its two halves."""
        times = self.case.times
        self.launch, self.issued = times.launch[self.rank], times.issued[self.rank]
        self.start, self.end = times.start[self.rank], times.end[self.rank]
        self.bounds = np.concatenate([[0.0], self.end[np.array(self.prog.kind) == SYNC]])
        if not self.capture.split:
            return [self.text(*self.window)]
        middle = float(self.bounds[self.case.captured[len(self.case.captured) // 2]])
        return [self.text(self.window[0], middle), self.text(middle, self.window[1])]

    def text(self, begin: float, stop: float) -> str:
        self.rows = []
        self.step_rows(begin, stop)
        self.op_rows(begin, stop)
        if self.capture.shuffled:
            order = np.random.default_rng([self.case.seed, self.rank]).permutation(len(self.rows))
            rows = [self.rows[i] for i in order]
        else:
            rows = sorted(self.rows, key=lambda r: (r[0] if self.capture.cpu_first else 0, r[1]))
        meta = self.metadata()
        head = json.dumps({"schemaVersion": 1, **({} if self.capture.metadata_last else meta)})[:-1]
        name = {"name": "process_name", "ph": "M", "ts": 0.0, "pid": self.pid, "args": {"name": "python3.11"}}
        body = ",\n".join(["  " + json.dumps(name), *("  " + row[2] for row in rows)])
        tail = json.dumps(meta)[1:-1] + ", " if self.capture.metadata_last else ""
        last = {"traceName": f"/tmp/trace_{self.pid}.json", "displayTimeUnit": "ms"}
        last |= {"baseTimeNanoseconds": BASE} if self.capture.base else {}
        return f'{head}, "traceEvents": [\n{body}\n],\n{tail}{json.dumps(last)[1:]}'

    def metadata(self) -> dict[str, object]:
        """What the file says of the rank, the job and its process groups."""
        info: dict[str, object] = {
            "backend": "nccl",
            "rank": self.shown,
            "world_size": self.case.job.mesh.world,
        }
        form = FORMS[self.capture.form]
        if form.lists_groups and (self.capture.pg_config or form.nccl2 or form.keys is not None):
            mine = self.case.groups.of[self.rank].values()
            info["pg_count"] = len(self.case.groups.of[self.rank])
            info["pg_config"] = [
                {
                    "pg_name": g.name,
                    "pg_desc": g.desc,
                    "backend_config": "cuda:nccl",
                    "pg_size": len(g.ranks),
                    "ranks": self.members(g),
                }
                for g in mine
            ]
        info["nccl_version"] = "2.21.5"
        out: dict[str, object] = {
            "deviceProperties": [{"id": self.device, "name": "NVIDIA H100 PCIe", "numSms": 132}],
            "distributedInfo": info,
        }
        if self.capture.host_name:
            out["host_name"] = f"node{self.host}.cluster"
        return out
