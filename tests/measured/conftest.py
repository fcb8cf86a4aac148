"""Whole stacks, for what can only be seen of a real engine."""

from __future__ import annotations

from tests.stack.conftest import make_stack

__all__ = ["make_stack"]
