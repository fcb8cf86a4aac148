"""llama.cpp's adapter: argv, metrics, evidence, failure signatures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from containers.embedded import options, selftest
from orchestrator.kinds import Backend, KvType
from orchestrator.models import Ngram, Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import LaunchRequest, adapter, diagnose, flags_of

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
    emitted: set[str] = set()
    for request in (
        PLAIN,
        *(replace(drafted, method=m) for m in Method),
        replace(drafted, method=Method.NGRAM, ngram=Ngram(kind="simple", match=4, longest=8)),
        replace(PLAIN, backend=Backend.CUDA, kv=KvType.Q8_0, prompt_cache=256 << 20),
        replace(PLAIN, port="{port}"),
    ):
        emitted |= flags_of(LLAMA.command(request).argv)
    assert emitted == LLAMA.flags


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"method": Method.DFLASH, "draft_tokens": 7}, "no_drafter"),
        ({"method": Method.MTP, "draft_tokens": 0}, "no_draft_tokens"),
        ({"kv": KvType.FP8}, "kv_type"),
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
