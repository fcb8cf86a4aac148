"""No version of vLLM is told a word that it does not know; the tables are those of the wheels."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from orchestrator.catalogue import shipped
from orchestrator.kinds import Backend, KvType
from orchestrator.models import Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import LaunchRequest, adapter, flags_of, vllm_flags
from orchestrator.runtimes.vllm_flags import NEWEST, OLDEST, Word, knows
from orchestrator.runtimes.vllm_speculation import NAMES, can_schedule, method_of
from orchestrator.settings import Settings
from tests.runtimes.vllm import surfaces

VLLM = adapter(Runtime.VLLM)
VERSIONS, WORDS = surfaces.known()
TABLES: Mapping[str, Mapping[str, Word]] = {
    "flags": vllm_flags.FLAGS,
    "keys": vllm_flags.SPECULATION,
    "methods": vllm_flags.METHODS,
    "kv": vllm_flags.KV_TYPES,
    "attention": vllm_flags.ATTENTION_BACKENDS,
    "environment": vllm_flags.ENVIRONMENT,
    "moe": vllm_flags.MOE_BACKENDS,
}
WITHOUT_EFFECT = {"--mamba-cache-mode": {"0.33.0"}}
"""Words that a version still takes, and ignores."""

FULL = LaunchRequest(
    model="/models/target",
    names=("m",),
    context=4096,
    parallel=4,
    backend=Backend.CUDA,
    arch="sm_90",
    kv=KvType.BF16,
    kv_pool=1 << 30,
    memory_share=0.5,
    state_bits=16,
    batch=4096,
    tensor_parallel=2,
    draft_tensor_parallel=1,
    trust_remote_code=True,
    hybrid=True,
    settings=Settings(graphs="piecewise", moe_backend="triton", env={"NCCL_DEBUG": "WARN"}),
)
METHODS: Mapping[Method, dict[str, object]] = {
    Method.NONE: {},
    Method.NGRAM: {"draft_tokens": 4},
    Method.MTP: {"draft_tokens": 1},
    Method.DRAFT: {"draft_tokens": 4, "drafter": "/models/drafter"},
    Method.EAGLE3: {"draft_tokens": 4, "drafter": "/models/drafter"},
    Method.DFLASH: {"draft_tokens": 7, "drafter": "/models/drafter"},
    Method.DSPARK: {"draft_tokens": 7, "drafter": "/models/drafter"},
}


@pytest.mark.parametrize("kind", TABLES)
def test_the_tables_are_the_wheels(kind: str) -> None:
    for name, word in TABLES[kind].items():
        spelt = name.replace("--no-", "--") if name.startswith("--no-") else name
        have = WORDS[kind][spelt] - WITHOUT_EFFECT.get(name, set())
        assert {version for version in VERSIONS if knows(word, version)} == have, name


def test_the_range_is_what_was_read() -> None:
    assert (VERSIONS[0], VERSIONS[-1]) == (OLDEST, NEWEST)
    shipped_versions = {i.version for i in shipped().images if i.runtime is Runtime.VLLM and i.version}
    assert shipped_versions <= set(VERSIONS), (
        "a version that the catalogue has was never read off its wheel (surfaces.py)"
    )


@pytest.mark.parametrize("version", [None, *VERSIONS])
def test_no_version_hears_a_strange_word(version: str | None) -> None:
    knowing = set(VERSIONS) if version is None else {version}
    said = 0
    for (method, more), eager, hybrid, (backend, arch) in itertools.product(
        METHODS.items(), (True, False), (True, False),
        ((Backend.CUDA, "sm_86"), (Backend.CUDA, "sm_90"), (Backend.ROCM, "gfx1151"), (Backend.ROCM, "gfx942"),
         (Backend.CPU, None)),
    ):  # fmt: skip
        for settings in (
            Settings(), FULL.settings.model_copy(update={"env": {}}),
            Settings(draft_kv=KvType.BF16), Settings(draft_attention_backend="TRITON_ATTN"), Settings(vision=True),
            Settings(kv=KvType.INT4), Settings(kv=KvType.FP8), Settings(dtype="float16"),
        ):  # fmt: skip
            request = replace(
                FULL, version=version, method=method, eager=eager, hybrid=hybrid, backend=backend, arch=arch,
                tensor_parallel=1 if backend is Backend.CPU else 2, draft_tensor_parallel=None, settings=settings,
                **more,  # type: ignore[arg-type]
            )  # fmt: skip
            if VLLM.refuses(request) is not None:
                continue
            command = VLLM.command(request)
            said += 1
            for flag in flags_of(command.argv):
                assert knowing <= WORDS["flags"][flag.replace("--no-", "--")], flag
            for name in command.env:
                assert not name.startswith("VLLM_") or knowing <= WORDS["environment"][name], name
            words = dict(zip(command.argv, command.argv[1:], strict=False))
            assert knowing <= WORDS["kv"][words["--kv-cache-dtype"]]
            if "--attention-backend" in words:
                assert knowing <= WORDS["attention"][words["--attention-backend"]]
            if "--speculative-config" in words:
                config = json.loads(words["--speculative-config"])
                assert all(knowing <= WORDS["keys"][key] for key in config)
                assert knowing <= WORDS["methods"][config["method"]]
    assert said > 100


@pytest.mark.parametrize(
    ("change", "known_by"),
    [
        ({"method": Method.DSPARK}, "0.25.0"),
        ({"method": Method.DFLASH, "settings": Settings(draft_kv=KvType.FP8)}, "0.26.0"),
        ({"method": Method.DFLASH, "settings": Settings(draft_attention_backend="FLASH_ATTN")}, "0.21.0"),
        ({"settings": Settings(kv=KvType.INT4)}, "0.25.0"),
        ({"method": Method.DFLASH, "schedule": ((1, 2, 7), (3, 4, 0))}, "0.25.0"),
        ({"method": Method.NGRAM, "schedule": ((1, 2, 4), (3, 4, 0))}, "0.32.0"),
        ({"method": Method.DFLASH, "settings": Settings(kv=KvType.FP8, attention_backend="FLASHINFER")}, "0.24.0"),
        ({"backend": Backend.ROCM, "arch": "gfx942", "attention_backend": "ROCM_SEGMENTED_ATTN"}, "0.32.0"),
    ],
)
def test_what_an_older_version_lacks_is_refused(change: dict[str, object], known_by: str) -> None:
    method = change.get("method", Method.NONE)
    assert isinstance(method, Method)
    request = replace(FULL, **{"settings": Settings(), **METHODS[method], **change})  # type: ignore[arg-type]
    for version in VERSIONS:
        reason = VLLM.refuses(replace(request, version=version))
        assert (reason is None) == (VERSIONS.index(version) >= VERSIONS.index(known_by)), (version, reason)
        if reason is not None:
            assert reason.source is not None
            assert re.search(r"vLLM 0\.33\.0 \S+\.py|v1/attention", reason.source)
    assert VLLM.refuses(replace(request, version=None)) is not None


def test_older_forms() -> None:
    hybrid = replace(FULL, settings=Settings())
    words = VLLM.command(replace(hybrid, version="0.32.0")).argv
    assert words[words.index("--mamba-cache-mode") + 1] == "align"
    for version in ("0.33.0", None):
        assert "--mamba-cache-mode" not in VLLM.command(replace(hybrid, version=version)).argv
    cpu = replace(FULL, backend=Backend.CPU, arch=None, tensor_parallel=1, settings=Settings(), kv_pool=3 << 29)
    old, new = (VLLM.command(replace(cpu, version=version)) for version in ("0.31.0", "0.32.0"))
    assert old.env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "--kv-cache-memory-bytes" not in old.argv
    assert "VLLM_CPU_KVCACHE_SPACE" not in new.env
    assert new.argv[new.argv.index("--kv-cache-memory-bytes") + 1] == str(3 << 29)


def test_a_version_that_is_only_bounded() -> None:
    request = replace(FULL, settings=Settings(kv=KvType.INT4, attention_backend="TRITON_ATTN"))
    for version, fine in (("0.26.0+", True), ("0.24.0+", False), ("0.19.0+", False), ("0.24.0", False)):
        assert (VLLM.refuses(replace(request, version=version)) is None) == fine, version
    argv = VLLM.command(replace(request, version="0.26.0+")).argv
    assert "--mamba-cache-mode" not in argv  # 0.33.0 has done with it
    assert "--mamba-cache-mode" in VLLM.command(replace(request, version="0.26.0")).argv


def test_versions_out_of_range() -> None:
    reason = VLLM.refuses(replace(FULL, version="0.19.1"))
    assert reason is not None
    assert reason.code == "version_unsupported"
    for version in ("0.34.0", "v0.33.0", "0.33.1", "nightly", "0.33.0+cpu"):
        assert VLLM.refuses(replace(FULL, version=version, settings=Settings())) is None, version


def test_methods_by_their_own_names() -> None:
    for method, name in NAMES.items():
        assert method_of(name) == (method, None)
    for name in ("qwen3_5_mtp", "bailing_hybrid_v3_mtp", "deepseek_mtp"):
        assert name in WORDS["methods"]
        assert method_of(name)[0] is Method.MTP
    for name in WORDS["methods"]:
        found, why = method_of(name)
        assert (found is None) == (why is not None)
    assert "any more" in str(method_of("medusa")[1])


def test_schedules_need_the_newer_runner_on_a_gpu() -> None:
    assert not can_schedule(Method.DFLASH, Backend.CUDA, "0.24.0")  # the key is there, the runner that bears it is not
    assert can_schedule(Method.DFLASH, Backend.CPU, "0.32.0")
    assert not can_schedule(Method.DSPARK, Backend.CPU, "0.32.0")
    assert not can_schedule(Method.NONE, Backend.CUDA, "0.33.0")
    for schedule in (((2, 4, 7),), ((1, 4, 7), (4, 8, 0)), ((1, 4, 8),), ((1, 0, 7),)):
        request = replace(FULL, method=Method.DFLASH, drafter="/d", draft_tokens=7, version="0.33.0", schedule=schedule)
        reason = VLLM.refuses(request)
        assert reason is not None
        assert reason.code == "bad_schedule"


def test_strange_variables_are_refused() -> None:
    for name, fine in (("VLLM_NO_SUCH", False), ("VLLM_DISABLE_COMPILE_CACHE", True), ("HSA_ENABLE_SDMA", True)):
        request = replace(FULL, settings=Settings(env={name: "1"}))
        assert (VLLM.refuses(request) is None) == fine
        if fine:
            assert VLLM.command(request).env[name] == "1"
