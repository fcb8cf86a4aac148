"""All constants of time in one value, so that tests run the same code at a fraction of the scale.

`scaled` shrinks what *we* choose (periods, dwell, back-off); deadlines for work
that others do (a container start, a model load) are kept, for the machine does
not get faster when a test is in a hurry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds throughout, but for `scale`: what the policies' own times (dwell) are to be multiplied by."""

    scale: float = 1.0

    # deadlines of external calls: never scaled
    podman_call: float = 30.0
    engine_call: float = 10.0
    gateway_call: float = 10.0
    probe_call: float = 10.0
    hub_call: float = 20.0  # the head of a hub's answer; its bytes have no deadline but `hub_stall`
    load: float = 900.0  # 8.5-9 min were seen for 27B AWQ on gfx1151 with warm caches
    proof_call: float = 120.0
    canary: float = 30.0  # what a canary may take before ready; what is not asked by then waits for an idle hour
    drain: float = 300.0
    unload_drain: float = 2.0  # an idle model whose last answer takes longer is not idle: it stays
    stop_grace: float = 10.0
    shutdown: float = 30.0
    cut_off: float = 20.0  # an engine that listens inside and is dead from outside is given up after so long
    memory_free: float = 30.0  # after a stop, until its memory is free; then the device is quarantined
    guard_kill: float = 2.0  # memory is short -> the engine's process has gone; the bar of the memory guard

    # not before what matters has begun: never scaled
    doctor_first: float = 30.0
    telemetry_samples: int = 720
    """How many samples are kept: an hour of them. A number, and so never scaled. They take 0.7 MB with one GPU
    and one engine, and 14 MB with 8 GPUs, 16 engines and 32 strangers that all change all the time."""

    # periods and policies: scaled
    reconcile_period: float = 5.0
    engine_poll: float = 0.1
    engine_poll_max: float = 2.0
    telemetry_period: float = 5.0
    reading_stale: float = 15.0  # what was read of a GPU longer ago than this is marked as old
    device_look: float = 45.0  # before a driver that was absent or broken is asked again
    disk_period: float = 30.0
    canary_look: float = 15.0  # whether engines draft as their plans say
    canary_period: float = 21_600.0  # one that serves is asked again what its weights say
    canary_idle: float = 600.0  # when nobody wanted anything of it for so long
    stall: float = 60.0  # an engine that two witnesses say does nothing for so long has stalled
    health_period: float = 5.0  # between two looks at an engine that serves
    health_canary: float = 30.0  # without a sign of life for so long it is asked for a token
    health_patience: float = 10.0  # that such a token may take
    path_period: float = 10.0  # between two looks at the way to an engine that has a port
    governor_period: float = 1.0
    guard_period: float = 0.4
    memory_step: float = 0.25  # between two looks at memory that is to come free
    pause_look: float = 1.0
    pause: float = 5.0  # a daemon that did not run for so long begins to watch anew
    guard_calm: float = 5.0  # memory is short no longer when it has been enough for so long
    rate_window: float = 10.0
    backoff_first: float = 1.0
    backoff_next: float = 10.0
    backoff_max: float = 300.0
    backoff_reset: float = 600.0
    rung_window: float = 600.0  # serving time in which three failures are too many for a rung
    rung_up: float = 86_400.0  # until what was given up is tried again
    pull_again: float = 2.0  # doubled at each further try of one pull
    report_period: float = 0.5
    link_retry: float = 0.5
    link_retry_max: float = 5.0
    held_backoff: float = 15.0  # requests wait over a back-off that is no longer than this
    demand_period: float = 1.0  # how often idle models are looked at, and starts that wait for room look again
    call_kept: float = 10.0  # a model that a request called, and that has not come, is forgotten when nobody waits
    hold: float = 600.0
    held_stream_comment: float = 10.0
    hub_stall: float = 60.0
    hub_retry: float = 1.0
    hub_retry_max: float = 30.0
    pull_report: float = 1.0  # people are promised a sign at least every 2 s

    def scaled(self, factor: float) -> Timing:
        """The same timing with periods and policies multiplied by `factor` (> 0)."""
        if factor <= 0:
            raise ValueError("a time scale must be above zero")
        scaled = {name: getattr(self, name) * factor for name in _SCALED}
        scaled["guard_period"] = min(scaled["guard_period"], GUARD_PERIOD_MAX)
        scaled["pause"] = max(scaled["pause"], PAUSE_MIN)
        scaled["stall"] = max(scaled["stall"], min(self.stall, STALL_MIN))
        return replace(self, scale=self.scale * factor, **scaled)


GUARD_PERIOD_MAX = 0.5
"""Seconds: two looks and a kill have to fit into `guard_kill` at any scale."""
PAUSE_MIN = 1.0
"""Seconds at any scale: a busy machine keeps a process waiting for less."""
STALL_MIN = 6.0
"""Seconds at any scale: a machine that is busy alone keeps an engine silent for seconds."""
_SCALED = (
    "reconcile_period",
    "engine_poll",
    "engine_poll_max",
    "telemetry_period",
    "reading_stale",
    "device_look",
    "disk_period",
    "canary_look",
    "canary_period",
    "canary_idle",
    "path_period",
    "stall",
    "health_period",
    "health_canary",
    "health_patience",
    "governor_period",
    "guard_period",
    "memory_step",
    "pause_look",
    "pause",
    "guard_calm",
    "rate_window",
    "backoff_first",
    "backoff_next",
    "backoff_max",
    "backoff_reset",
    "rung_window",
    "rung_up",
    "pull_again",
    "report_period",
    "link_retry",
    "link_retry_max",
    "held_backoff",
    "demand_period",
    "call_kept",
    "held_stream_comment",
    "hub_stall",
    "hub_retry",
    "hub_retry_max",
    "pull_report",
)
