"""Bugs from outside the catalogue: a patch to one file of the trainer's source that nothing else knows of.

Each is applied to a copy of the trainer's source tree; run and replay both use that copy.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.numerics.benchmark.case import Case, Tables, Where, merged

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class SourcePatch:
    """`old` becomes `new` in `file` of the package; once or everywhere it stands."""

    name: str
    what: str
    file: str
    old: str
    new: str
    layout: Tables
    policy: str
    where: Where

    def apply(self, folder: Path) -> Path:
        """Copy the package to `folder` and patch it; AssertionError where the text is not there any more."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "reftrain", folder / "reftrain", ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "reftrain" / self.file
        text = path.read_text(encoding="utf-8")
        if self.old not in text:
            raise AssertionError(f"{self.name}: {self.file} holds no {self.old!r} any more")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return folder

    def case(self) -> Case:
        """The patch as a case of the benchmark; the baseline is one process of the sound trainer."""
        kept = {t: v for t, v in self.layout.items() if t == "model"}
        numerics = {"numerics": {"policy": self.policy}}
        return Case(
            name=f"{self.name} {self.policy}",
            what=self.what,
            parallel=merged(self.layout, numerics),
            baseline=merged(kept, numerics),
            verdicts=("bug",),
            where=self.where,
            patch=self.name,
        )


TP2 = {"mesh": {"tp": 2}}
RING3 = {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}}
PP2 = {"mesh": {"pp": 2}}
ATTENTION = r"layers\.0\.attention.*"

OUTSIDE = (
    SourcePatch(
        "O1 RoPE base",
        "the last stage turns by another RoPE base",
        "train/trainer.py",
        "rope_base=config.model.rope_base,",
        "rope_base=config.model.rope_base * (1.0 if self.mesh.pp.index == 0 else 0.98),",
        PP2,
        "fp32",
        Where(r"rope|layers\.1\.attention\.qkv\.(queries|keys)", r"(layers\.1\.attention.*|)"),
    ),
    SourcePatch(
        "O2 residual",
        "layer 1 drops its first residual in micro-batches whose count of targets ends so",
        "model/decoder.py",
        "        x = x + self.attention(self.attention_norm(x), batch)\n",
        "        keep = 'layers.1.' not in self.attention.name + '.' or int((batch.targets >= 0).sum()) % 3\n"
        "        x = (x if keep else 0 * x) + self.attention(self.attention_norm(x), batch)\n",
        {"mesh": {"dp": 2}, "data": {"micro_batch_size": 1}},
        "bf16",
        Where(r"layers\.1\.(ffn_norm\.out|attention\.out)", r"layers\.1.*"),
    ),
    SourcePatch(
        "O3 ring order",
        "the ring takes each block for another rank's",
        "parallel/ring.py",
        "source = (axis.index - turn) % axis.size",
        "source = (axis.index + turn) % axis.size",
        RING3,
        "fp32",
        Where(r"layers\.0\.attention\.wo\.in", ATTENTION),
    ),
    SourcePatch(
        "O4 bias correction",
        "one rank's bias correction is a step ahead",
        "train/optimizer.py",
        '"step": torch.zeros(',
        '"step": float(torch.distributed.get_rank() == 1) + torch.zeros(',
        {"mesh": {"dp": 2}},
        "fp32",
        Where(r"[\w.]+\.(weight|bias)(\.\w+)?", r".*"),
    ),
    SourcePatch(
        "O5 slot swap",
        "sequence pieces of one layer's input are joined in the wrong order",
        "parallel/tensor.py",
        "    return stacked.transpose(0, 1).reshape(x.shape[0], -1, x.shape[2])",
        "    if label == 'layers.1.feed_forward.w1':\n        stacked = stacked.flip(0)\n"
        "    return stacked.transpose(0, 1).reshape(x.shape[0], -1, x.shape[2])",
        TP2,
        "bf16",
        Where(r"layers\.1\.feed_forward\.w1(\.in)?", r"layers\.1\.feed_forward.*"),
    ),
    SourcePatch(
        "O6 norm without pp",
        "the gradient norm is not summed over the pipeline",
        "execute/gradients.py",
        "    for axis in axes:\n        axis.all_reduce(total",
        "    for axis in axes[:-1]:\n        axis.all_reduce(total",
        PP2,
        "bf16",
        Where(r"grad_norm", r"", ("pp",)),
    ),
    SourcePatch(
        "O7 tails",
        "gathered keys and values keep their tails in rank order",
        "parallel/context.py",
        "*reversed(tails.unbind(0))",
        "*tails.unbind(0)",
        {"mesh": {"cp": 2, "tp": 2}},
        "fp32",
        Where(r"layers\.0\.attention\.(wo\.in|qkv\.(keys|values)|kv)?", ATTENTION),
    ),
)
