"""Why an engine ended: the words of its log first, then the kind of its death. Pure.

An engine is not to end by itself: exit status 0 is a failure like another (vLLM's server ends with 0 when its core
dies, vllm#53726).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from containers.memory_kills import MemoryKills
from orchestrator.errors import EngineFailed
from orchestrator.runtimes.base import FailureSignature, diagnose
from orchestrator.telling.amounts import size

SHOWN = 5
"""Last lines of the log that the evidence carries."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An engine that ended: what people call it, whose it is, how, and the last of its log."""

    name: str
    deployment: str
    exit_code: int | None
    """None: nobody knows (its conmon died)."""
    log: Sequence[str]
    memory_limit: int | None = None
    """Bytes that its container may have; None is no limit of its own."""
    kills: MemoryKills | None = None
    """What the kernel killed in its container for want of memory; None: nobody knows."""


@dataclass(frozen=True, slots=True)
class _Death:
    """What an exit code that stands for a signal means, where the log says nothing."""

    code: str
    text: str
    hint: str
    retryable: bool = True


_LOG = "`outrider logs` has its last words"
_OOM = "`dmesg | grep -i oom` tells; a person may have done it too"
_SIGNALS: Mapping[int, _Death] = {
    signal.SIGKILL: _Death(
        "engine_killed",
        "was killed (SIGKILL)",
        f"out of memory is the usual cause: {_OOM}",
    ),
    signal.SIGILL: _Death(
        "cpu_unsupported",
        "died of an instruction that this CPU does not have (SIGILL)",
        "its build needs CPU features that the host lacks: pin another image, or use another host",
        False,
    ),
    signal.SIGABRT: _Death("engine_aborted", "gave itself up (SIGABRT)", _LOG),
    signal.SIGSEGV: _Death("engine_crashed", "crashed (SIGSEGV)", _LOG),
    signal.SIGBUS: _Death(
        "engine_crashed", "crashed (SIGBUS)", "a weights file that was cut off while it was mapped does this"
    ),
    signal.SIGFPE: _Death("engine_crashed", "crashed (SIGFPE)", _LOG),
    signal.SIGTERM: _Death("engine_killed", "was told to end (SIGTERM) by somebody else", "a person may have done it"),
}


_FOLLOWS = frozenset({"engine_died"})
"""What a log says when one of several processes was killed."""


def judge(ended: Ended, failures: tuple[FailureSignature, ...]) -> EngineFailed:
    """The failure that an end is. What its GPU or the kernel reported is added by `device_policy.blamed`."""
    code = ended.exit_code
    evidence = {"exit_code": code, "log": [line[:300] for line in ended.log[-SHOWN:]]}
    how = "without an exit code" if code is None else f"with exit code {code}"
    signature = diagnose(ended.log, failures)
    if ended.kills is not None and ended.kills.count and (signature is None or signature.code in _FOLLOWS):
        return _for_memory(ended, ended.kills, evidence)
    if signature is not None:
        telling = next((line for line in ended.log if signature.pattern.search(line)), "")
        return EngineFailed(
            signature.code,
            f"{ended.name} ended {how}: {telling.strip()[:300]}",
            retryable=signature.retryable,
            hint=signature.hint,
            evidence=evidence,
        )
    death = _SIGNALS.get((code or 0) - 128)
    if death is not None:
        text, hint = (death.text, death.hint) if code != 128 + signal.SIGKILL else _by_whom(ended, death)
        return EngineFailed(death.code, f"{ended.name} {text}", retryable=death.retryable, hint=hint, evidence=evidence)
    if code is None:
        return EngineFailed(
            "engine_exited",
            f"{ended.name} ended, and how is not known: what keeps its exit code and its log (conmon) had died",
            hint="`dmesg` tells whether the kernel ended it; its log ends where conmon did",
            evidence=evidence,
        )
    last = next((line for line in reversed(ended.log) if line.strip()), "nothing in its log")
    by_itself = ", which an engine never does by itself" if code == 0 else ""
    return EngineFailed(
        "engine_exited",
        f"{ended.name} ended {how}{by_itself}: {last[:200]}",
        hint=f"`outrider logs {ended.deployment}` has the whole log",
        evidence=evidence,
    )


def _for_memory(ended: Ended, kills: MemoryKills, evidence: Mapping[str, object]) -> EngineFailed:
    """The kernel killed it, or one of its processes, because memory ran out: its container's, or more than that."""
    itself = ended.exit_code == 128 + signal.SIGKILL
    who = f"{ended.name} was killed by the kernel" if itself else f"a process of {ended.name} was killed by the kernel"
    limit = "" if ended.memory_limit is None else f" of {size(ended.memory_limit)}"
    seen = {**evidence, "kernel_kills": kills.count, "known_by": kills.source, "memory_limit_bytes": ended.memory_limit}
    if kills.at_limit:
        return EngineFailed(
            "cgroup_out_of_memory",
            f"{who}: its container reached its memory limit{limit}",
            hint="give the model less context or fewer slots (`parallel`), or its container more memory",
            evidence=seen,
        )
    return EngineFailed(
        "host_out_of_memory",
        f"{who}: memory ran out on this machine, or in what Outrider as a whole may have of it",
        hint="stop another model, or give this one less context",
        evidence=seen,
    )


def _by_whom(ended: Ended, death: _Death) -> tuple[str, str]:
    """Words and hint for a SIGKILL that the kernel did not send for want of memory, or of which nobody knows."""
    if ended.kills is not None:
        return (
            f"{death.text}, and not for want of memory",
            "a person or another program did it: somebody's `kill`, a script, a memory guard such as earlyoom",
        )
    if ended.memory_limit is not None:
        return death.text, f"its container may have {size(ended.memory_limit)}, which is perhaps too little: {_OOM}"
    return death.text, death.hint
