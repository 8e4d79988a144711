import time

import pytest
import torch

from reftrain.faults.extra_work import ExtraWork


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _compute():
    a = torch.ones(400, 400)
    for _ in range(8):
        a = (a @ a).clamp_(max=1.0)


def test_adds_the_factor_in_processor_time(one_thread):
    extra = ExtraWork(1.5)
    _compute()
    own = total = 0.0
    for _ in range(12):
        extra.begin()
        start = time.thread_time()
        _compute()
        own += time.thread_time() - start
        extra.end()
        total += time.thread_time() - start
    assert total / own == pytest.approx(1.5, abs=0.1)
    assert extra.take_wall_ms() > 0.0
    assert extra.take_wall_ms() == 0.0


def test_end_without_begin_does_nothing(one_thread):
    extra = ExtraWork(3.0)
    extra.end()
    assert extra.take_wall_ms() == 0.0
