"""Judges a gradient of which ranks hold unequal copies: not reduced, or each a multiple of the one sum."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from numerics.local.judgement import Judged, Standing
from numerics.local.learned_orders import LearnedOrders
from numerics.local.parameter_gradients import Scale, Sum, judge_gradient, share_held
from numerics.thresholds.comparison import LEAST_FITTED

Copies = Sequence[tuple[tuple[int, ...], torch.Tensor]]
"""The ranks that hold each copy, and the copy."""


def judge_copies(
    copies: Copies, total: Sum, scale: Scale, learned: LearnedOrders
) -> tuple[Judged, tuple[int, ...]]:
    """Return how unequal copies of a gradient stand to the scaled sum, and the ranks of those that are wrong.

    The first wrong copy stands for all. Copies that are all right within rounding stand as the worst of them.
    """
    judged = [judge_gradient(copy, total, scale, learned) for _, copy in copies]
    wrong = [n for n, one in enumerate(judged) if one.standing == Standing.BEYOND]
    if not wrong:
        return max(judged, key=lambda one: one.standing), ()
    ranks = tuple(sorted(rank for n in wrong for rank in copies[n][0]))
    return replace(
        judged[wrong[0]], how=_in_words(copies, judged, total, scale), lone="", factors=None
    ), ranks


def _in_words(copies: Copies, judged: Sequence[Judged], total: Sum, scale: Scale) -> str:
    """Say what the copies are; empty where no one relation holds for all that are wrong."""
    if copies[0][1].numel() < LEAST_FITTED:
        return ""
    own = [share_held(copy, total, scale) for _, copy in copies]
    if len(copies) > 1 and None not in own and len(set(own)) == len(copies):
        return "it was not reduced: each data-parallel rank holds its own share"
    said = []
    for (ranks, _), one in zip(copies, judged, strict=True):
        if one.standing != Standing.BEYOND:
            continue
        if one.factors is None or one.ratio is None:
            return ""
        whose = ", ".join(str(rank) for rank in ranks)
        said.append(f"rank {whose} {one.ratio:.6g} times")
    return f"its copies are unequal multiples of the right value: {'; '.join(said)}"
