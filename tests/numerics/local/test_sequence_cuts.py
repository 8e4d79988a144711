"""Plain pieces of ranks lie as the placed inputs are cut, where their lengths tell so."""

import torch

from numerics.local.records.sequence_cuts import SequenceCut, counts_positions

CUT = SequenceCut(1, 8, {0: torch.tensor([0, 1, 6, 7]), 1: torch.tensor([2, 3, 4, 5])})


def test_plain_positions_are_joined_as_cut():
    made = CUT.along(dict(CUT.pieces))
    assert made is not None
    assert torch.equal(made, torch.arange(8))


def test_positions_that_begin_anew_are_tiled():
    made = CUT.along({rank: torch.arange(4) for rank in (0, 1)})
    assert made is not None
    assert made.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_copies_and_other_lengths_are_no_pieces():
    same = torch.tensor([3, 9, 1, 7])
    assert CUT.along({0: same, 1: same}) is None
    assert CUT.along({0: torch.arange(3), 1: torch.arange(3)}) is None
    assert not counts_positions(torch.ones(4, dtype=torch.bool))
