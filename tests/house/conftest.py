"""Syntax trees of the whole repository, without the collector."""

import gc

import pytest


@pytest.fixture(autouse=True)
def collector_rests():
    """Trees are not searched for garbage: to do so again and again took longer than to parse them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
