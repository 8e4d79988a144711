"""Flat masters of ZeRO-1: addresses and values map them to elements of weights; a guess never does."""

import pytest
import torch
from torch import nn

from numerics.record.masters.flat import flat_masters
from numerics.record.masters.known import masters_of
from numerics.record.masters.stepped import Stretch, boxes_of_stretch
from numerics.schema import linear_index


def weights(vector=torch.ones):
    torch.manual_seed(0)
    shapes = [(6, 4), (4,), (5, 4), (4,)]
    made = [nn.Parameter(torch.randn(s) if len(s) > 1 else vector(s)) for s in shapes]
    return [nn.Parameter(p.detach().bfloat16()) for p in made]


def in_buffer(held, gap=0):
    buffer, at = torch.zeros(sum(p.numel() + gap for p in held), dtype=torch.bfloat16), 0
    for p in held:
        buffer[at : at + p.numel()] = p.detach().reshape(-1)
        p.data = buffer[at : at + p.numel()].view_as(p)
        at += p.numel() + gap
    return buffer


def end_to_end(held):
    return torch.cat([p.detach().reshape(-1).float() for p in held])


def stretches(held, stepped, dp=(0, 1)):
    groups = [(number, tensor) for number, group in enumerate(stepped) for tensor in group]
    found = flat_masters(held, groups, dp)
    own = [found.of(p) for p in held] if found else []
    return [None if one is None else (one.stretch.at, one.stretch.first, one.stretch.count) for one in own]


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 4)])
def test_boxes_follow_the_elements(shape):
    size = torch.Size(shape).numel()
    for first in range(size):
        for count in range(1, size - first + 1):
            boxes = boxes_of_stretch(shape, Stretch(0, first, count))
            told = [int(i) for box in boxes for i in linear_index(shape, box)]
            assert told == list(range(first, first + count))
            assert len(boxes) < 2 * len(shape)


@pytest.mark.parametrize("order", [1, -1])
def test_shares_of_weights_end_to_end_are_found(order):
    held = weights(torch.randn)
    parts = nn.functional.pad(end_to_end(held[::order]), (0, 2)).chunk(3)
    found = [stretches(held, [[part]], (rank, 3)) for rank, part in enumerate(parts)]
    for number, p in enumerate(held):
        counted = sum(own[number][2] for own in found if own[number] is not None)
        assert counted == p.numel()


def test_views_say_where_weights_lie():
    held = weights()
    buffer = in_buffer(held, gap=3)
    assert stretches(held, [[buffer.float()[30:50]]]) == [None, (0, 3, 1), (4, 0, 16), None]


def test_a_flat_tensor_in_the_same_memory_is_found():
    held = weights()
    buffer = in_buffer([*held[1::2], *held[::2]])
    with torch.no_grad():
        buffer.zero_()
    assert stretches(held, [[nn.Parameter(buffer[4:12])]]) == [(4, 0, 4), None, None, (0, 0, 4)]


def test_a_share_that_begins_with_equal_values_is_unknown():
    held = weights()
    assert stretches(held, [[end_to_end(held[::-1])[:18]]], (0, 3)) == []


def test_values_that_fit_in_several_places_show_nothing():
    held = weights()
    in_buffer(held)
    assert stretches(held, [[torch.ones(4)]]) == []


@pytest.mark.parametrize("order", [1, -1])
def test_equal_pieces_follow_the_direction_of_others(order):
    held = weights()
    in_buffer(held[::order])
    pieces = [p.detach().reshape(-1).float() for p in held]
    whole = [(0, 0, p.numel()) for p in held]
    assert stretches(held, [pieces]) == whole
    found = flat_masters(held, [(0, piece) for piece in pieces], (0, 1))
    assert [found.of(p).tensor is piece for p, piece in zip(held, pieces, strict=True)] == [True] * 4


def test_equal_pieces_in_no_shown_direction_are_unknown():
    held = weights()
    in_buffer(held)
    matrix, one, other, two = (p.detach().reshape(-1).float() for p in held)
    assert stretches(held, [[matrix], [other], [one, two]]) == []


def test_other_values_are_no_master():
    held = weights()
    assert stretches(held, [[end_to_end(held) + 1]]) == []


def test_masters_against_the_models_order_are_followed():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 5)).bfloat16()
    held = list(model.parameters())
    copies = [nn.Parameter(p.detach().float().clone()) for p in held[::-1]]
    found = masters_of(model, torch.optim.AdamW(copies))
    assert all(found.of(p).tensor is c for p, c in zip(held, copies[::-1], strict=True))


def test_masters_in_no_shown_order_are_unknown():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5)).bfloat16()
    first, second, *rest = (nn.Parameter(p.detach().float().clone()) for p in model.parameters())
    assert not masters_of(model, torch.optim.AdamW([rest[1], rest[0], *rest[2:], first, second]))
