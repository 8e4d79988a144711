"""Other recordings of the same run: nothing of the run changes, so no answer may change its culprit."""

from dataclasses import replace

import numpy as np

from tests.generator.case import Case


def _captured(case: Case, **changes: object) -> Case:
    return replace(case, capture=replace(case.capture, **changes))


def shift_clock(case: Case, rank: int, ns: int) -> Case:
    """Add `ns` to every time that `rank` recorded."""
    offsets = list(case.capture.offsets)
    offsets[rank] += ns
    return _captured(case, offsets=offsets)


def drop_rank(case: Case, rank: int) -> Case:
    """Lose one rank's file."""
    return _captured(case, missing=case.capture.missing | {rank})


def rename_files(case: Case) -> Case:
    """Give files names without the rank, if their content has it."""
    return _captured(case, names=4, metadata_last=False)


def split_steps(case: Case) -> Case:
    """Write two files for each rank, cut at a step boundary."""
    return _captured(case, split=True, truncated={})


def shuffle_events(case: Case) -> Case:
    """Shuffle the rows of every file."""
    return _captured(case, shuffled=True, truncated={})


def relabel(case: Case, labels: list[int]) -> Case:
    """Rename simulated rank r to `labels[r]` everywhere: files, groups, peers and truth."""
    truth = case.truth
    coords = {labels[rank]: at for rank, at in truth.coords.items()}
    truth = replace(truth, suspects=frozenset(labels[r] for r in truth.suspects), coords=coords)
    return replace(_captured(case, labels=labels), truth=truth)


def permute_ranks(case: Case, seed: int) -> Case:
    """Rename ranks at random: groups stay groups, but their strides are gone."""
    order = np.random.default_rng([seed, 31]).permutation(case.job.mesh.world)
    return relabel(case, [int(x) for x in order])


def permute_axes(case: Case, seed: int) -> Case:
    """Permute the indices along every axis: another rank is struck, and the mesh stays as it was."""
    mesh, rng = case.job.mesh, np.random.default_rng([seed, 32])
    moves = {axis: rng.permutation(size) for axis, size in mesh.sizes.items()}
    labels = []
    for rank in range(mesh.world):
        at = {axis: int(moves[axis][i]) for axis, i in mesh.coords(rank).items()}
        labels.append(mesh.rank(at))
    return relabel(case, labels)
