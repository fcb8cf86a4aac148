"""The rest of Outrider's error tree (its root, and what fetching and containers raise: `containers.errors`).

    OutriderError
      UsageError            usage              exit 2, HTTP 400
        ConfigError         config_invalid     exit 1, HTTP 400
      NotFound              not_found          exit 3, HTTP 404
      Refused               refused            exit 4, HTTP 409
        DoesNotFit          too_big
        WeightsMissing      weights_missing
        Conflict            conflict
        SwitchTooCostly     switch_too_costly
        SuspectedHostCrash  suspected_host_crash
        DeviceRefused       gpu_lost, driver_mismatch
      DeviceMissing         waiting_device     HTTP 503, retryable
      TimedOut              timed_out          exit 5, HTTP 504, retryable
      DaemonUnreachable     daemon_unreachable exit 6
      ModelFileError        model_file         HTTP 422
      DatabaseFailed        database_failed    HTTP 503, retryable
      FetchError            (weights and images on their way)    HTTP 502
        AuthGated           auth_gated         exit 4, HTTP 403
        AuthFailed          auth_failed        exit 4, HTTP 403
        NotOffered          not_offered        exit 3, HTTP 404
        RateLimited         rate_limited       HTTP 503, retryable
        SourceFailed        source_failed      retryable
        DigestMismatch      digest_mismatch    retryable
      DiskError             HTTP 507
        DiskFull            disk_full          exit 4, retryable
        DiskReadOnly        disk_read_only     exit 4
      EngineError           engine
        EngineFailed        (a code per cause: see `orchestrator.runtimes`)
      ContainerError        HTTP 503, see containers.errors

Codes are stable: programs match on them. `exit_code` and `status` map an error
once, here, to what the command line and HTTP say.
"""

from __future__ import annotations

from collections.abc import Mapping

from containers.errors import (
    AuthFailed,
    AuthGated,
    ContainerError,
    DigestMismatch,
    DiskError,
    DiskFull,
    DiskReadOnly,
    FetchError,
    ImageUnnamed,
    NotOffered,
    OutriderError,
    RateLimited,
    SourceFailed,
)

__all__ = [
    "MEMORY_GUARD",
    "AuthFailed",
    "AuthGated",
    "ConfigError",
    "Conflict",
    "ContainerError",
    "DaemonUnreachable",
    "DatabaseFailed",
    "DeviceMissing",
    "DeviceRefused",
    "DigestMismatch",
    "DiskError",
    "DiskFull",
    "DiskReadOnly",
    "DoesNotFit",
    "EngineFailed",
    "FetchError",
    "ModelFileError",
    "NotFound",
    "NotOffered",
    "OutriderError",
    "RateLimited",
    "Refused",
    "SourceFailed",
    "SuspectedHostCrash",
    "SwitchTooCostly",
    "TimedOut",
    "UsageError",
    "WeightsMissing",
    "exit_code",
    "status",
]


class UsageError(OutriderError):
    """The call itself is wrong."""

    code = "usage"


class ConfigError(UsageError):
    """A configuration file is wrong; `file` and `key` say where."""

    code = "config_invalid"

    def __init__(self, file: str, key: str | None, detail: str, *, hint: str | None = None) -> None:
        where = file if key is None else f"{file}: {key}"
        super().__init__(f"{where}: {detail}", hint=hint, evidence={"file": file, "key": key})
        self.file = file
        self.key = key


class NotFound(OutriderError):
    """No such model, deployment, job, engine."""

    code = "not_found"


class Refused(OutriderError):
    """Understood, and not done."""

    code = "refused"


class DoesNotFit(Refused):
    """The plan needs more memory than there is."""

    code = "too_big"


class WeightsMissing(Refused):
    """The plan is good, and its weights are not here."""

    code = "weights_missing"


class Conflict(Refused):
    """Somebody else holds what this needs (a state folder, a name)."""

    code = "conflict"


class SwitchTooCostly(Refused):
    """The change would leave the model unserved for longer than is allowed."""

    code = "switch_too_costly"


class SuspectedHostCrash(Refused):
    """The host went down while this model was being loaded; only a person starts it again."""

    code = "suspected_host_crash"


class DeviceRefused(Refused):
    """The GPU that this needs cannot be had now; `code` says why."""

    def __init__(self, code: str, detail: str, *, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint)
        self.code = code


class DeviceMissing(OutriderError):
    """A device that the model needs is not there (yet)."""

    code = "waiting_device"
    retryable = True


class TimedOut(OutriderError):
    """A deadline passed."""

    code = "timed_out"
    retryable = True


class DaemonUnreachable(OutriderError):
    """The command line found no daemon."""

    code = "daemon_unreachable"
    retryable = True


class ModelFileError(OutriderError):
    """A model file is missing, truncated or not what it claims to be."""

    code = "model_file"


class DatabaseFailed(OutriderError):
    """The state database cannot be read or written now."""

    code = "database_failed"
    retryable = True


class EngineFailed(OutriderError):
    """An engine did not come up or did not prove itself; `code` names the cause."""

    code = "engine_failed"

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        retryable: bool = True,
        hint: str | None = None,
        evidence: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail, hint=hint, evidence=evidence)
        self.code = code
        self.retryable = retryable


MEMORY_GUARD = "memory_guard"
"""The code of an `EngineFailed` whose engine was stopped so that the host does not freeze."""


def exit_code(error: OutriderError) -> int:
    """The command line's exit code for an error (contract)."""
    match error:
        case ConfigError():
            return 1  # the call was right, the file is not
        case UsageError() | ImageUnnamed():
            return 2
        case NotFound() | NotOffered():
            return 3
        case Refused() | AuthGated() | AuthFailed() | DiskError():
            return 4
        case TimedOut():
            return 5
        case DaemonUnreachable():
            return 6
        case _:
            return 1


_STATUS: tuple[tuple[type[OutriderError] | tuple[type[OutriderError], ...], int], ...] = (
    ((UsageError, ImageUnnamed), 400),
    ((AuthGated, AuthFailed), 403),
    ((NotFound, NotOffered), 404),
    (Refused, 409),
    (ModelFileError, 422),
    ((RateLimited, ContainerError, DaemonUnreachable, DatabaseFailed, DeviceMissing), 503),
    (FetchError, 502),
    (TimedOut, 504),
    (DiskError, 507),
)
"""The first that an error belongs to counts."""


def status(error: OutriderError) -> int:
    """The control API's HTTP status for an error."""
    return next((number for kinds, number in _STATUS if isinstance(error, kinds)), 500)
