"""Which class each failure code belongs to. A test asks for the class of every code there is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.faults.classes import POLICIES, Fault, Gives, Policy

_CODES: Mapping[Fault, str] = {
    Fault.CRASH: "engine_exited engine_killed engine_aborted engine_crashed engine_died engine_assert engine_failed",
    Fault.STALLED: "engine_stalled engine_unresponsive engine_hung load_timed_out chat_empty",
    Fault.WRONG_OUTPUT: "canary_failed chat_failed",
    Fault.SPECULATION: "drafter_overrun bad_speculation speculation_off speculation_not_drafting drafter_mismatch"
    " no_mtp_head",
    Fault.DEVICE_MEMORY: "out_of_memory no_kv_memory kv_too_small graph_capture context_failed",
    Fault.HOST_MEMORY: "host_out_of_memory memory_guard",
    Fault.CGROUP_MEMORY: "cgroup_out_of_memory",
    Fault.DEVICE: "gpu_fault gpu_reset device_fault collective",
    Fault.DEVICE_LOST: "gpu_lost driver_mismatch waiting_device device_unavailable device_invisible",
    Fault.FLAG: "bad_flag context_too_long attention_backend kv_type split_unsupported spec_refused",
    Fault.UNSUPPORTED: "gpu_unsupported cpu_unsupported driver_too_old architecture_unknown model_unsupported"
    " quantisation_unsupported shared_memory",
    Fault.WEIGHTS: "model_truncated model_unreadable model_file weights_missing needs_remote_code digest_mismatch",
    Fault.IMAGE: "image_missing image_unnamed not_offered arch_mismatch image_build_failed",
    Fault.AUTH: "auth_gated auth_failed",
    Fault.PLACE: "address_in_use port_dead network_path_broken device_occupied engine_socket_replaced ports_exhausted"
    " gpu_memory_held",
    Fault.NO_ROOM: "too_big refused conflict suspected_host_crash switch_too_costly",
    Fault.HANDS: "wedged internal podman_failed podman_timeout podman_unreachable container container_missing"
    " name_in_use timed_out database_failed disk_full disk_read_only disk_failed fetch_failed source_failed"
    " rate_limited cancelled groups_unmapped config_invalid not_found usage",
}
FAULTS: Mapping[str, Fault] = {code: fault for fault, codes in _CODES.items() for code in codes.split()}

_NARROWER: Mapping[str, frozenset[Gives]] = {
    # fewer slots do not make a drafter belong to its target; an overrun is what they help against
    "bad_speculation": frozenset({Gives.METHOD, Gives.RUNTIME}),
    "speculation_off": frozenset({Gives.METHOD, Gives.RUNTIME}),
    "speculation_not_drafting": frozenset({Gives.METHOD, Gives.RUNTIME}),
    "drafter_mismatch": frozenset({Gives.METHOD, Gives.RUNTIME}),
    "no_mtp_head": frozenset({Gives.METHOD, Gives.RUNTIME}),
    "graph_capture": frozenset({Gives.GRAPHS, Gives.RUNTIME}),
    "engine_assert": frozenset({Gives.SLOTS, Gives.METHOD, Gives.RUNTIME}),
}


def fault_of(code: str) -> Fault:
    """The class of a code; one that nobody knows is a crash, which is what an engine's own words end in."""
    return FAULTS.get(code, Fault.CRASH)


def policy_of(code: str) -> Policy:
    """What follows from this code."""
    policy = POLICIES[fault_of(code)]
    helps = _NARROWER.get(code)
    return policy if helps is None else Policy(policy.blames, helps, policy.text, policy.limit, policy.persists)


def codes() -> Iterator[str]:
    """All codes that have a class."""
    yield from FAULTS
