"""Sequences of two runs are matched if padding alone differs, and not if one of them is cut short."""

import torch

from numerics.local.records.padded_sequences import counterparts, key_of


def keys(*sequences):
    return [tuple(key_of(torch.tensor(one)) for one in inputs) for inputs in sequences]


def test_padding_makes_no_other_sequence():
    mine = keys([[5, 6]], [[7, 8, 9]], [[5, 6, 7, 8]])
    other = keys([[5, 6, 7, 8]], [[7, 8, 9, 0]], [[5, 6, 0, 0]])
    assert counterparts(mine, other) == [2, 1, 0]
    assert counterparts(other, mine) == [2, 1, 0]


def test_sequences_cut_short_are_others():
    assert counterparts(keys([[5, 6]], [[7, 8]]), keys([[5, 6, 1, 4]], [[7, 8, 0, 0]])) == [-1, 1]


def test_padding_of_one_value_is_told_from_words():
    mine = keys([[5, 6]], [[7, 8]], [[1, 2]])
    assert counterparts(mine, keys([[5, 6, 0]], [[7, 8, 0]], [[1, 2, 9]])) == [0, 1, -1]


def test_masks_and_positions_go_on_with_the_words():
    mine = keys([[5, 6], [1, 1], [0, 1]])
    assert counterparts(mine, keys([[5, 6, 3], [1, 1, 0], [0, 1, 2]])) == [0]
    assert counterparts(mine, keys([[5, 6, 3], [1, 1, 0], [0, 2, 3]])) == [-1]


def test_each_sequence_is_matched_once():
    assert counterparts(keys([[5, 6]], [[5, 6]]), keys([[5, 6, 0]], [[5, 7, 0]])) == [0, -1]
