"""llama.cpp's adapter: argv, metrics, evidence, failure signatures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from containers.embedded import options, selftest
from orchestrator.kinds import Backend, KvType
from orchestrator.models import Ngram, Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import LaunchRequest, adapter, diagnose, flags_of
from orchestrator.runtimes.llama_cpp import builds
from orchestrator.settings import Settings

LLAMA = adapter(Runtime.LLAMA_CPP)
PLAIN = LaunchRequest(model="/models/target/m.gguf", names=("tiny", "Tiny"), context=2048, parallel=2, threads=1)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Method.DFLASH, "--spec-type draft-dflash -md /models/drafter/d.gguf --spec-draft-n-max 7"),
        (Method.DSPARK, "--spec-type draft-dspark -md /models/drafter/d.gguf --spec-draft-n-max 7"),
        (Method.EAGLE3, "--spec-type draft-eagle3 -md /models/drafter/d.gguf --spec-draft-n-max 7"),
        (Method.DRAFT, "--spec-type draft-simple -md /models/drafter/d.gguf --spec-draft-n-max 7"),
        (Method.MTP, "--spec-type draft-mtp --spec-draft-n-max 7"),
        (Method.NGRAM, "--spec-type ngram-mod --spec-ngram-mod-n-match 24"),
    ],
)
def test_methods(method: Method, words: str) -> None:
    drafter = None if method in (Method.MTP, Method.NGRAM) else "/models/drafter/d.gguf"
    command = LLAMA.command(replace(PLAIN, method=method, drafter=drafter, draft_tokens=7))
    assert words in " ".join(command.argv)


def test_plain_has_no_trace_of_speculation_and_no_key_in_argv() -> None:
    command = LLAMA.command(PLAIN)
    assert " ".join(command.argv) == (
        "-m /models/target/m.gguf --alias tiny --host /run/engine/engine.sock -c 4096 -np 2 -t 1 "
        "--metrics --slots --jinja --no-webui"
    )
    assert command.env == {"LLAMA_API_KEY": "{key}", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_every_flag_is_declared() -> None:
    drafted = replace(PLAIN, drafter="/models/drafter/d.gguf", draft_tokens=3)
    settled = Settings(draft_kv=KvType.Q8_0, mmap=False, p_min=0.5, prefix_caching=False, batch=4096)
    emitted: set[str] = set()
    for request in (
        PLAIN,
        *(replace(drafted, method=m) for m in Method),
        replace(drafted, method=Method.NGRAM, ngram=Ngram(kind="simple", match=4, longest=8)),
        replace(PLAIN, backend=Backend.CUDA, kv=KvType.Q8_0, prompt_cache=256 << 20, tensor_parallel=2),
        replace(drafted, method=Method.DFLASH, settings=settled),
        replace(PLAIN, settings=settled, version="b10068"),
        replace(PLAIN, port="{port}"),
    ):
        emitted |= flags_of(LLAMA.command(request).argv)
    assert emitted == LLAMA.flags


def words(**change: Any) -> str:
    return " ".join(LLAMA.command(replace(PLAIN, **change)).argv)


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        (None, "--load-mode none", "--no-mmap"),
        ("b11434", "--load-mode none", "--no-mmap"),
        ("b10434", "--load-mode none", "--no-mmap"),
        ("b10068", "--no-mmap", "--load-mode"),
        ("b9294", "--no-mmap", "--load-mode"),
    ],
)
def test_mapping_is_switched_off_in_the_words_of_the_build(version: str | None, has: str, lacks: str) -> None:
    said = words(version=version, settings=Settings(mmap=False))
    assert has in said
    assert lacks not in said


def test_an_old_build_is_not_given_a_method_that_it_lacks() -> None:
    drafted = {"method": Method.DFLASH, "drafter": "/models/d", "draft_tokens": 7}
    for version, code in (("b9294", "method_unknown"), ("b10068", None), ("b9010", "version_unsupported")):
        reason = LLAMA.refuses(replace(PLAIN, **drafted, version=version))  # type: ignore[arg-type]
        assert (reason.code if reason else None) == code
    assert LLAMA.refuses(replace(PLAIN, **drafted | {"method": Method.DSPARK}, version="b10068"))  # type: ignore[arg-type]
    assert not LLAMA.refuses(replace(PLAIN, **drafted | {"method": Method.DSPARK}))  # type: ignore[arg-type]


def test_every_flag_is_known_to_the_build_that_it_is_said_to() -> None:
    drafted = replace(PLAIN, drafter="/models/d", draft_tokens=3, settings=Settings(mmap=False, p_min=0.5))
    for version in (None, *(f"b{build}" for build in builds.table().builds)):
        for method in Method:
            request = replace(drafted, method=method, version=version, backend=Backend.CUDA, tensor_parallel=2)
            if LLAMA.refuses(request) is None:
                for flag in flags_of(LLAMA.command(request).argv):
                    assert builds.knows(builds.build_of(version), flag), (version, flag)


TWO: dict[str, Any] = {"backend": Backend.CUDA, "tensor_parallel": 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"backend": Backend.CPU}, None),
        ({"backend": Backend.CUDA}, "--device CUDA0 -ngl 999 --fit off --metrics"),
        ({"backend": Backend.ROCM}, "--device ROCm0 -ngl 999 --fit off --metrics"),
        (TWO, "--device CUDA0,CUDA1 -ngl 999 --fit off --split-mode tensor"),
        (TWO | {"mla": True}, "--split-mode layer"),
        (TWO | {"kv": KvType.Q8_0}, "--split-mode layer"),
        (TWO | {"kv": KvType.Q8_0, "version": "b11434"}, "--split-mode tensor"),
        (TWO | {"settings": Settings(flash_attention=False)}, "--split-mode layer"),
        (TWO | {"backend": Backend.VULKAN}, "--device Vulkan0,Vulkan1 -ngl 999 --fit off --split-mode layer"),
    ],
)  # fmt: skip
def test_devices(change: dict[str, Any], said: str | None) -> None:
    line = words(**change)
    assert said in line if said else "--device" not in line


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(flash_attention=False), "-fa off"),
        (Settings(flash_attention=True), "-fa on"),
        (Settings(batch=1024), "-ub 1024 --metrics"),
        (Settings(batch=4096), "-ub 4096 -b 4096"),
        (Settings(prefix_caching=False), "--no-cache-prompt"),
    ],
)
def test_settings(settings: Settings, said: str) -> None:
    assert said in words(settings=settings)


def test_settings_of_drafting() -> None:
    drafted = {"method": Method.DFLASH, "drafter": "/models/d", "draft_tokens": 7}
    said = words(**drafted, settings=Settings(p_min=0.6, draft_kv=KvType.Q8_0))
    assert "--spec-draft-n-max 7 --spec-draft-p-min 0.6 --spec-draft-type-k q8_0 --spec-draft-type-v q8_0" in said
    assert "p-min" not in words(**drafted)
    assert "-md /models/d" in words(**drafted | {"method": Method.MTP})  # an `mtp-*.gguf` beside the model
    assert "--spec-ngram-mod-n-match 32" in words(
        method=Method.NGRAM, draft_tokens=8, settings=Settings(ngram_least=32)
    )


def test_settled_environment_cannot_replace_the_key() -> None:
    env = {"LLAMA_API_KEY": "mine", "A": "b"}
    found = LLAMA.command(replace(PLAIN, settings=Settings(env=env))).env
    assert (found["LLAMA_API_KEY"], found["A"]) == ("{key}", "b")


def test_removed_options_have_a_new_name() -> None:
    assert builds.replacement("--draft-max") == "--spec-draft-n-max"
    assert builds.replacement("--no-mmap") == "--load-mode none"
    assert builds.replacement("-c") is None
    assert not builds.knows(11434, "--draft-max")
    assert builds.knows(10793, "--no-mmap")
    assert not builds.knows(10883, "--no-mmap")
    assert not builds.knows(None, "--no-mmap")
    assert not builds.knows(11434, "--frobnicate")
    assert builds.build_of("b11434") == builds.build_of("11434") == 11434
    assert builds.build_of("b11434+") == 11434  # it or a newer one
    assert builds.build_of("b10068+") is None  # newer ones have removed some of what it knows
    assert builds.build_of("0.6.0-dev") is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"method": Method.DFLASH, "draft_tokens": 7}, "no_drafter"),
        ({"method": Method.MTP, "draft_tokens": 0}, "no_draft_tokens"),
        ({"kv": KvType.FP8}, "kv_type"),
        ({"kv": KvType.Q5_0, "backend": Backend.CUDA}, "kv_type"),
        ({"kv": KvType.Q5_0, "backend": Backend.CUDA, "version": "b11434"}, None),
        ({"kv": KvType.IQ4_NL, "backend": Backend.CUDA, "version": "b11434"}, "kv_type"),
        ({"kv": KvType.IQ4_NL}, None),
        ({"kv": KvType.Q8_0, "settings": Settings(flash_attention=False)}, "kv_type"),
        ({"settings": Settings(draft_kv=KvType.FP8)}, "kv_type"),
        ({"method": Method.EAGLE3, "drafter": "/d", "draft_tokens": 7, "parallel": 5}, None),
        ({}, None),
    ],
)
def test_refuses_what_would_start_and_do_nothing(change: dict[str, object], code: str | None) -> None:
    request = replace(PLAIN, **change)  # type: ignore[arg-type]
    reason = LLAMA.refuses(request)
    assert (reason.code if reason else None) == code
    if reason is not None:
        with pytest.raises(ValueError, match=r"\w"):
            LLAMA.command(request)


@pytest.mark.parametrize("method", list(Method))
def test_the_embedded_engine_understands_it(method: Method) -> None:
    """The wheel's launcher reads llama-server's flags; a flag it does not know ends it."""
    request = replace(PLAIN, method=method, drafter="/models/drafter/d.gguf", draft_tokens=7, prompt_cache=256 << 20)
    command = LLAMA.command(request)
    settings = options.parse(command.argv, {"LLAMA_API_KEY": "secret"}).settings
    assert settings["model.path"] == "/models/target/m.gguf"
    assert settings["model_alias"] == {"tiny"}
    assert settings["hostnames"] == ["/run/engine/engine.sock"]
    assert (settings["n_ctx"], settings["n_parallel"], settings["cache_ram_mib"]) == (4096, 2, 256)
    assert settings["api_keys"] == ["secret"]


METRICS = """\
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:prompt_tokens_total 1234
llamacpp:tokens_predicted_total 5.6e+02
llamacpp:predicted_tokens_seconds nan
llamacpp:spec_decode_num_draft_tokens_total 223
llamacpp:spec_decode_num_accepted_tokens_total 200
llamacpp:spec_decode_num_drafts_total 32
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 32
"""


def test_metrics() -> None:
    seen = LLAMA.parse_metrics(METRICS)
    assert (seen.running, seen.waiting, seen.prompt, seen.generated) == (2, 1, 1234, 560)
    assert (seen.drafted, seen.accepted, seen.drafts) == (223, 200, 32)


def test_absent_metrics_are_unknown_not_zero() -> None:
    seen = LLAMA.parse_metrics("llamacpp:requests_processing 0\nllamacpp:tokens_predicted_total NaN\nllamacpp:pro")
    assert (seen.running, seen.generated, seen.drafted) == (0, None, None)


def test_evidence_of_speculation_comes_from_the_slots() -> None:
    assert LLAMA.evidence_path == "/slots"
    assert LLAMA.speculates([{"id": 0, "speculative": True}, {"id": 1, "speculative": True}]) is True
    assert LLAMA.speculates([{"id": 0, "speculative": False}]) is False
    for unclear in ([{"id": 0}], [], {"error": {"code": 501}}, None, "on"):
        assert LLAMA.speculates(unclear) is None


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("error: invalid argument: --draft-max", "bad_flag"),
        ("xl_server.py: error: unrecognized arguments: --x", "bad_flag"),
        ("E srv load_model: failed to load model, '/models/target/m.gguf'", "model_unreadable"),
        ("gguf_init_from_file: failed to open GGUF file\nerror loading model", "model_unreadable"),
        ("llama_model_load: error loading model: tensor 'output.weight' data is not within the file bounds, model is "
         "corrupted or incomplete\nfailed to load model", "model_truncated"),
        ("W context model doesn't contain MTP layers\nfailed to load model", "no_mtp_head"),
        ("srv load_model: failed to initialize speculative decoding context", "speculation_off"),
        ("/src/ggml/src/ggml.c:3021: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed", "engine_assert"),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of "
         "memory\nfailed to load model", "out_of_memory"),
        ("ggml_vulkan: Device memory allocation failed: ErrorOutOfDeviceMemory", "out_of_memory"),
        ("main: couldn't bind HTTP server socket, hostname: /run/engine/engine.sock", "address_in_use"),
        ("common.cpp get_sub_batch: failed to add token 3 (error -2)", "drafter_overrun"),
        ("vk::DeviceLostError device lost", "device_fault"),
        (f"error: {selftest.complaint('flags : sse4_2')}", "cpu_unsupported"),
        ("E llama_prepare_model_devices: LLAMA_SPLIT_MODE_TENSOR needs >= 1 devices\nE srv    load_model: failed to "
         "load model, '/models/m'", "split_unsupported"),
        ("error while handling argument \"--device\": invalid device: CUDA0", "device_invisible"),
        ("E llama_init_from_model: quantized V cache requires flash_attn to be enabled\nE srv    load_model: failed to "
         "create_context with model '/models/m'", "kv_type"),
        ("E srv    load_model: failed to create_context with model '/models/m'", "context_failed"),
        ("E llama_model_load: error loading model: unknown model architecture: 'qwenX'\nE srv    load_model: failed to "
         "load model", "architecture_unknown"),
        ("E spec common_specu: the target and draft vocabs are not compatible", "speculation_off"),
        ("W common_speculative_impl_draft_dflash: requested draft size (n_max=16, n_min=0) exceeds the trained block "
         "size 8 -- clamping to 7", None),
        ("E llama_init_from_model: failed to initialize the context: dflash requires ctx_other to be set (this warning "
         "is normal during memory fitting)", None),
        ("W srv          init: security: no API key is set and CORS allows all origins", None),
        ("all is well\nserver is listening", None),
    ],
)  # fmt: skip
def test_dying_words(log: str, code: str | None) -> None:
    found = diagnose(log.splitlines(), LLAMA.failures)
    assert (found.code if found else None) == code
    if found is not None:
        assert found.hint


def test_loading_and_priors() -> None:
    assert LLAMA.socket
    assert LLAMA.health_path == "/health"
    assert 503 in LLAMA.loading_statuses
    small, large = (LLAMA.load_prior_s(n, Backend.CPU, None) for n in (10**6, 17 * 10**9))
    assert small < 2
    assert 30 < large < 120
