"""Why an engine ended: the words of its log first, then the kind of its death. Pure.

An engine is not to end by itself: exit status 0 is a failure like another (vLLM's server ends with 0 when its core
dies, vllm#53726).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import EngineFailed
from orchestrator.runtimes.base import FailureSignature, diagnose

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
    limited: bool = False
    """Whether its container has a memory limit of its own."""


@dataclass(frozen=True, slots=True)
class _Death:
    """What an exit code that stands for a signal means, where the log says nothing."""

    code: str
    text: str
    hint: str
    retryable: bool = True


_LOG = "`outrider logs` has its last words"
_SIGNALS: Mapping[int, _Death] = {
    signal.SIGKILL: _Death(
        "engine_killed",
        "was killed (SIGKILL)",
        "out of memory is the usual cause: `dmesg | grep -i oom` tells; a person may have done it too",
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


def judge(ended: Ended, failures: tuple[FailureSignature, ...]) -> EngineFailed:
    """The failure that an end is. What its GPU or the kernel reported is added by `device_policy.blamed`."""
    code = ended.exit_code
    evidence = {"exit_code": code, "log": [line[:300] for line in ended.log[-SHOWN:]]}
    how = "without an exit code" if code is None else f"with exit code {code}"
    signature = diagnose(ended.log, failures)
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
        if ended.limited and death.code == "engine_killed" and code == 128 + signal.SIGKILL:
            return EngineFailed(
                "cgroup_out_of_memory",
                f"{ended.name} {death.text}; its container has a memory limit, which it probably passed",
                hint="raise the model's memory limit, or lower context or parallel",
                evidence=evidence,
            )
        return EngineFailed(
            death.code, f"{ended.name} {death.text}", retryable=death.retryable, hint=death.hint, evidence=evidence
        )
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
