"""Tiny, deterministic models that make real engines testable: see `tests.models.generate`."""
