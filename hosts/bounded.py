"""A deadline for calls that may never come back (a read of sysfs below a wedged driver).

Such a call cannot be cancelled: its thread is left behind. So that a probe every
few seconds does not leave one behind each time, a key whose call still hangs is
refused at once until it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """The call did not return within its deadline, or an earlier one still has not."""


class _Call(threading.Thread, Generic[T]):
    def __init__(self, key: str, work: Callable[[], T]) -> None:
        super().__init__(name=f"outrider-{key}", daemon=True)
        self._work = work
        self.result: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result.append(self._work())
        except BaseException as error:
            self.error = error


_hanging: dict[str, threading.Thread] = {}
_lock = threading.Lock()


def bounded(key: str, seconds: float, work: Callable[[], T]) -> T:
    """`work()` in a thread of its own, for at most `seconds`. Raises `Stuck`, or what `work` raised."""
    with _lock:
        earlier = _hanging.get(key)
        if earlier is not None:
            if earlier.is_alive():
                raise Stuck(f"{key}: an earlier call still hangs")
            del _hanging[key]
    call = _Call(key, work)
    call.start()
    call.join(max(seconds, 0.0))
    if call.is_alive():
        with _lock:
            _hanging[key] = call
        raise Stuck(f"{key}: no answer within {seconds:g} s")
    if call.error is not None:
        raise call.error
    return call.result[0]
