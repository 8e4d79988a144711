"""Cross-entropy over a vocabulary cut into shards, summed shard by shard in the ring's order.

Megatron-LM (Shoeybi et al. 2019), section 3: the maximum over all shards, then the sums of exponentials,
the target's logit and, with label smoothing, the sum of logits.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from reftrain.replay.batch import IGNORED
from reftrain.replay.ring import ring_sum
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks, joint


@dataclass
class _Shard:
    """One rank's logits in the wide format without padding, and where its targets are."""

    logits: Tensor
    valid: Tensor
    column: Tensor
    mine: Tensor
    exponentials: Tensor


class ShardedCrossEntropy:
    """Token losses of every rank, (N,), from its logits (N, V_padded/tp) and targets (N,)."""

    def __init__(self, virtual_ranks: VirtualRanks, vocab_size: int, smoothing: float) -> None:
        self.virtual_ranks, self.vocab_size, self.smoothing = virtual_ranks, vocab_size, smoothing
        self._shards: list[_Shard] = []
        self._totals: Ranks = []

    def losses(self, logits: Ranks, targets: Ranks) -> Ranks:
        """Losses in nats, 0 where the target is ignored."""
        return joint(lambda x: self._there(x, targets), lambda g: self._back(g, logits), logits)

    def _shard(self, logits: Tensor, targets: Tensor, tp: int) -> _Shard:
        start = tp * logits.shape[1]
        columns = min(max(self.vocab_size - start, 0), logits.shape[1])
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))[:, :columns]
        valid = targets != IGNORED
        column = (targets - start).clamp(0, max(columns - 1, 0))
        mine = valid & (targets >= start) & (targets < start + columns)
        return _Shard(wide, valid, column, mine, wide)

    def _reduced(self, label: str, parts: Ranks, *, greatest: bool = False) -> Ranks:
        if self.virtual_ranks.tp == 1:
            return parts
        if not greatest:
            return self.virtual_ranks.all_reduce("tp", label, parts)
        observer, groups = self.virtual_ranks.observer, self.virtual_ranks.groups("tp")
        parts = observer.collective_in("tp", "all_reduce", label, groups, parts)
        out = list(parts)
        for group in groups:
            total = ring_sum([parts[r] for r in group], combine=torch.maximum)
            for r in group:
                out[r] = total
        return observer.collective_out("tp", "all_reduce", label, groups, out)

    def _there(self, logits: Ranks, targets: Ranks) -> Ranks:
        ranks = self.virtual_ranks.tp
        self._shards = [
            self._shard(x, t, place % ranks) for place, (x, t) in enumerate(zip(logits, targets, strict=True))
        ]
        tops = [
            s.logits.amax(dim=1) if s.logits.shape[1] else s.logits.new_full((len(s.logits),), -torch.inf)
            for s in self._shards
        ]
        tops = self._reduced("loss.max", tops, greatest=True)
        sums = self._reduced(
            "loss.sums", [self._parts(s, t) for s, t in zip(self._shards, tops, strict=True)]
        )
        self._totals = [s[0] for s in sums]
        return [self._loss(s, t, shard) for s, t, shard in zip(sums, tops, self._shards, strict=True)]

    def _parts(self, shard: _Shard, top: Tensor) -> Tensor:
        """Addends of one shard: sum of exponentials, target's logit, and the sum of logits when smoothing."""
        shard.exponentials = torch.exp(shard.logits - top[:, None])
        zero = torch.zeros_like(top)
        picked = shard.logits.gather(1, shard.column[:, None])[:, 0] if shard.logits.shape[1] else zero
        parts = [shard.exponentials.sum(dim=1), torch.where(shard.mine, picked, zero)]
        return torch.stack([*parts, shard.logits.sum(dim=1)] if self.smoothing else parts)

    def _loss(self, sums: Tensor, top: Tensor, shard: _Shard) -> Tensor:
        log_sum = torch.log(sums[0]) + top
        losses = log_sum - sums[1]
        if self.smoothing:
            flat = log_sum - sums[2] / self.vocab_size
            losses = (1 - self.smoothing) * losses + self.smoothing * flat
        return torch.where(shard.valid, losses, torch.zeros_like(losses))

    def _back(self, grads: Ranks, logits: Ranks) -> Ranks:
        out = []
        for shard, total, grad, of in zip(self._shards, self._totals, grads, logits, strict=True):
            share = shard.exponentials / total[:, None]
            if self.smoothing:
                share = share - self.smoothing / self.vocab_size
            if share.shape[1]:
                here = torch.arange(share.shape[1]) == shard.column[:, None]
                less = (1 - self.smoothing) * shard.mine.to(share.dtype)
                share = torch.where(here, share - less[:, None], share)
            share = share * (grad * shard.valid)[:, None]
            padding = of.shape[1] - share.shape[1]
            out.append(F.pad(share, (0, padding)).to(of.dtype))
        return out
