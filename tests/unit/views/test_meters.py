"""Rates, measured over the last seconds."""

from __future__ import annotations

import pytest

from aiokcc.views.meters import RateMeter


def test_a_rate_needs_two_samples() -> None:
    meter = RateMeter()
    assert meter.per_second() is None
    meter.add(0, 0.0)
    assert meter.per_second() is None
    meter.add(10, 1.0)
    assert meter.per_second() == pytest.approx(10)


def test_a_rate_forgets_old_samples() -> None:
    meter = RateMeter(seconds=5.0)
    meter.add(0, 0.0)
    for second in range(1, 20):
        meter.add(1000 + 10 * second, float(second))
    assert meter.per_second() == pytest.approx(10)
