"""Calls that may never come back."""

from __future__ import annotations

import threading

import pytest

from hosts.bounded import Stuck, bounded
from tests.waiting import until_sync


def test_a_value_and_an_error_come_back() -> None:
    assert bounded("value", 5.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        bounded("error", 5.0, lambda: 1 // 0)


def test_a_hanging_call_is_left_behind_once_and_refused_until_it_returns() -> None:
    release = threading.Event()
    started: list[int] = []

    def hang() -> str:
        started.append(1)
        release.wait(30)
        return "late"

    with pytest.raises(Stuck, match="no answer"):
        bounded("hang", 0.05, hang)
    with pytest.raises(Stuck, match="still hangs"):
        bounded("hang", 5.0, hang)
    assert len(started) == 1
    assert bounded("another", 5.0, lambda: 1) == 1
    release.set()
    until_sync(lambda: not any(t.name == "outrider-hang" for t in threading.enumerate()), 5.0)
    assert bounded("hang", 5.0, lambda: "again") == "again"
