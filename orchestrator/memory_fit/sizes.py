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


def gibibytes(count: int) -> str:
    """`19.50 GiB`: memory in sentences, as drivers and `outrider plan` count it. Files are told in GB, as hubs do."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 100 << 20 else f"{count / (1 << 20):.1f} MiB"


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
    parts = " + ".join(f"{name} {gibibytes(count)}" for name, count in kinds if count)
    less = f" - {gibibytes(-expected.correction)} as measured here" if expected.correction < 0 else ""
    more = f" + {gibibytes(expected.correction)} as measured here" if expected.correction > 0 else ""
    of = "" if expected.budget is None else f" of {gibibytes(expected.budget)} ({expected.budget} bytes)"
    each = "" if expected.devices == 1 else f" on each of {expected.devices} devices"
    return f"{gibibytes(expected.total)} ({expected.total} bytes){of}{each}: {parts}{less}{more}"
