"""Units, rounding, and sentences about bytes."""

from __future__ import annotations

from orchestrator.plan import ExpectedMemory

MIB = 1 << 20
GIB = 1 << 30


def whole(count: int, per: int) -> int:
    """How many of size `per` hold `count`, rounded up."""
    return -(-count // per)


def pad(count: int, to: int) -> int:
    """`count` rounded up to a multiple of `to`."""
    return -(-count // to) * to


def gigabytes(count: int) -> str:
    """`19.50 GB`: for sentences. GB is 1e9 bytes, as models are sold."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def explain(expected: ExpectedMemory) -> str:
    """The sentence with the numbers: what it takes, of what; on each device, where there are several."""
    kinds = (
        ("weights", expected.weights),
        ("KV", expected.kv),
        ("recurrent state", expected.state),
        ("drafter", expected.drafter),
        ("compute", expected.compute),
        ("CUDA graphs", expected.graphs),
        ("the process itself", expected.overhead),
        ("a margin for what is estimated", expected.margin),
    )
    parts = " + ".join(f"{name} {gigabytes(count)}" for name, count in kinds if count)
    less = f" - {gigabytes(-expected.correction)} as measured here" if expected.correction < 0 else ""
    more = f" + {gigabytes(expected.correction)} as measured here" if expected.correction > 0 else ""
    of = "" if expected.budget is None else f" of {gigabytes(expected.budget)} ({expected.budget} bytes)"
    each = "" if expected.devices == 1 else f" on each of {expected.devices} devices"
    return f"{gigabytes(expected.total)} ({expected.total} bytes){of}{each}: {parts}{less}{more}"
