"""Fits recover planted constants; real processes give a hardware file that loads."""

import pytest

from reftrain.config.run import MeshConfig
from reftrain.cost.calibrate import (
    COLLECTIVES,
    SIZES,
    Sample,
    Speed,
    fit_link,
    hardware_toml,
    measure_links,
    measure_speed,
)
from reftrain.cost.hardware import parse_hardware
from reftrain.cost.links import AxisLinks, axis_links, collective_seconds, message_seconds


def made(alpha, beta, ranks=4, slower=1.0):
    links = AxisLinks(ranks, ranks, alpha, 1 / beta, 1 / beta)
    samples = [Sample("message", 2, n, message_seconds(links, n)) for n in SIZES]
    return samples + [
        Sample(op, ranks, n, slower * collective_seconds(links, op, n)) for op in COLLECTIVES for n in SIZES
    ]


@pytest.mark.parametrize("alpha", [1e-6, 1e-3])
@pytest.mark.parametrize("beta", [1e-11, 1e-9])
def test_planted_alpha_and_beta_are_found(alpha, beta):
    fit = fit_link(made(alpha, beta))
    assert fit.alpha == pytest.approx(alpha, rel=1e-6)
    assert fit.beta == pytest.approx(beta, rel=1e-6)
    assert all(ratio == pytest.approx(1) for ratio in fit.ratios.values())


def test_an_operation_that_does_not_follow_the_model_shows():
    fit = fit_link(made(1e-5, 1e-9, slower=2.0))
    assert fit.ratios["message"] < 0.8
    assert all(fit.ratios[op] > 1.1 for op in COLLECTIVES)


@pytest.mark.slow
def test_real_processes_are_measured():
    samples = measure_links(2)
    assert {(s.op, s.nbytes) for s in samples} == {(op, n) for op in ("message", *COLLECTIVES) for n in SIZES}
    assert all(s.seconds > 0 for s in samples)
    large, small = (
        next(s for s in samples if s.op == "message" and s.nbytes == n) for n in (SIZES[-1], SIZES[0])
    )
    assert large.seconds > small.seconds


def test_the_machine_computes_and_its_file_loads():
    speed = measure_speed()
    assert min(speed.matmul, speed.attention_forward, speed.attention_backward, speed.memory) > 1e7
    hardware = parse_hardware(hardware_toml(2, fit_link(made(1e-5, 1e-9, 2)), speed), "measured")
    assert hardware.flops_per_s == pytest.approx(speed.matmul, rel=1e-5)
    assert hardware.node.latency_us == pytest.approx(10)
    assert hardware.node.bytes_per_s == pytest.approx(1e9)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_the_file_prices_each_operation_as_it_was_measured(op):
    """Three ranks; every collective takes twice what the links say."""
    samples = made(1e-5, 1e-9, ranks=3, slower=2.0)
    text = hardware_toml(3, fit_link(samples), Speed(1e10, 1e9, 1e9, 1e9, 1e-6))
    hardware = parse_hardware(text, "measured")
    links = axis_links(hardware, MeshConfig(dp=3), "dp")
    largest = next(s for s in samples if s.op == op and s.nbytes == SIZES[-1])
    assert collective_seconds(links, op, SIZES[-1]) == pytest.approx(largest.seconds, rel=0.1)
    message = next(s for s in samples if s.op == "message" and s.nbytes == SIZES[-1])
    assert message_seconds(links, SIZES[-1]) == pytest.approx(message.seconds, rel=0.1)
    assert hardware.efficiency.overlap == 1.0
