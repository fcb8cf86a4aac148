"""Containers, compose files and units: what is around a server."""

from __future__ import annotations

import contextlib
import time

import pytest

from orchestrator.catalogue import shipped
from orchestrator.importing import Here, Imported, ImportUnreadable, Item, Kind, Outcome, read
from orchestrator.importing.reading import of_words
from orchestrator.kinds import KvType
from orchestrator.profiles import load as profile

HERE = Here(shipped())
ON_3090 = Here(shipped(), profile("dankserver"))
SECRET = "hf_ABCDEFGHIJKLMNOP"

COMPOSE = f"""
x-common: &common
  ipc: host
  restart: unless-stopped
services:
  big:
    <<: *common
    image: vllm/vllm-openai:${{VLLM_TAG:-latest}}
    command: >
      --model Qwen/Qwen3.8-27B --max-model-len 65536
      --kv-cache-dtype bfloat16
    environment:
      - HF_TOKEN={SECRET}
      - CUDA_VISIBLE_DEVICES=0
    ports: ["8000:8000"]
    volumes: ["/srv/hf:/root/.cache/huggingface"]
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: all, capabilities: [gpu]}}]}}}}}}
  small:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda-b11434
    command: ["-m", "/models/a.gguf", "-c", "8192", "-np", "2", "-ctk", "q8_0", "-ctv", "q8_0"]
    volumes: ["/srv/models:/models:ro"]
  web:
    image: ghcr.io/open-webui/open-webui:main
"""

QUADLET = f"""
[Unit]
Description=a model

[Container]
Image=docker.io/vllm/vllm-openai:v0.33.0
Exec=--model cyankiwi/Qwen3.6-27B-AWQ-INT4 \\
     --max-num-seqs 4
Environment=HF_TOKEN={SECRET} A=b
AddDevice=nvidia.com/gpu=all
PublishPort=8000:8000
Volume=/srv/hf:/root/.cache/huggingface
ShmSize=8g
Network=host
SecurityLabelDisable=true
PodmanArgs=--ipc=host
AutoUpdate=registry

[Service]
Restart=always

[Install]
WantedBy=default.target
"""


def codes(item: Item) -> set[str]:
    return {change.code for change in item.changes}


def one(found: Imported) -> Item:
    [item] = found.items
    return item


def test_a_compose_file_is_a_deployment_a_service() -> None:
    big, small, web = read(COMPOSE, HERE).items
    assert big.entry is not None
    assert (big.entry.context, big.entry.kv, big.entry.image) == (65536, KvType.BF16, None)
    assert codes(big) >= {"ipc_host", "secret", "named_device", "host_port", "hub_cache", "all_gpus", "image_latest"}
    assert small.entry is not None
    assert small.entry.variants[0].path == "/srv/models/a.gguf"
    assert (small.entry.context, small.entry.parallel, small.entry.kv) == (4096, 2, KvType.Q8_0)
    assert small.entry.image == "ghcr.io/ggml-org/llama.cpp:server-cuda-b11434"
    assert web.outcome is Outcome.REFUSED
    assert web.reason is not None
    assert web.reason.code == "unknown_image"


def test_a_quadlet_unit() -> None:
    item = one(read(QUADLET, HERE))
    assert item.entry is not None
    assert (item.entry.name, item.entry.parallel) == ("qwen3.6-27b", 4)
    assert item.entry.image == "docker.io/vllm/vllm-openai:v0.33.0"
    assert codes(item) >= {
        "secret", "all_gpus", "host_port", "hub_cache", "least_power", "ipc_host", "image_latest", "kept_running",
        "env_not_carried",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", [COMPOSE, QUADLET, f"HF_TOKEN={SECRET} vllm serve a/b --api-key {SECRET} --x={SECRET}"]
)
def test_no_secret_is_shown(text: str) -> None:
    found = read(text, HERE)
    assert SECRET not in str(found.to_dict())
    assert "secret" in {code for item in found.items for code in codes(item)}


def test_a_login_in_an_address_is_not_shown() -> None:
    said = str(read("curl https://me:hunter2@host/x --password hunter2", HERE).to_dict())
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("line", "legal"),
    [
        ("vllm serve Qwen/Qwen3.8-27B --kv-cache-dtype fp8 --attention-backend flash_attn", "fp8 with FLASHINFER"),
        ("llama-server -m /m.gguf -c 4096 -np 16 --spec-type draft-dflash -md /d.gguf", None),
    ],
)
def test_what_the_planner_would_refuse_is_refused(line: str, legal: str | None) -> None:
    item = one(read(line, ON_3090))
    if legal is not None:
        assert item.reason is not None
        assert legal in item.reason.text
        assert one(read(line, HERE)).entry is not None  # another GPU may take it
    else:
        assert item.entry is not None or item.reason is not None


def test_a_draft_is_cut_to_the_drafters_block_once() -> None:
    line = "llama-server -hf ggml-org/Qwen3.8-27B-GGUF:Q4_K_M -hfd incoai/Qwen3.8-27B-DFlash2-GGUF:Q4_K_M -c 8192"
    item = one(read(f"{line} --spec-type draft-dflash --spec-draft-n-max 16", HERE))
    assert item.entry is not None
    assert item.entry.speculation.draft_tokens == 7
    [clamped] = [change for change in item.changes if change.code == "draft_clamped"]
    assert (clamped.was, clamped.becomes) == ("16 draft tokens", "7")


def test_a_runtime_that_no_image_brings_here_is_refused() -> None:
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3.8-27B"
    item = one(read(line, Here(shipped(), profile("dankclaw"))))
    assert item.reason is not None
    assert one(read(line, ON_3090)).entry is not None


def test_larger_batches_are_left_to_roomy_devices() -> None:
    line = "vllm serve Qwen/Qwen3.8-27B --max-num-batched-tokens 32768"
    entry = one(read(line, Here(shipped(), profile("dankclaw")))).entry
    assert entry is not None
    assert entry.batch == 32768
    small = one(read(line, ON_3090)).entry
    assert small is not None
    assert small.batch == 8192


def test_remote_code_needs_a_commit() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    pinned = one(read(f"vllm serve a/b --trust-remote-code --revision {commit}", HERE))
    assert pinned.entry is not None
    assert pinned.entry.variants[0].trust_remote_code
    loose = one(read("vllm serve a/b --trust-remote-code --revision main", HERE))
    assert loose.entry is not None
    assert not loose.entry.variants[0].trust_remote_code
    assert "needs_revision" in codes(loose)


@pytest.mark.parametrize(
    ("words", "runtime"),
    [
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "a/b"], "vllm"),
        (["docker", "run", "lmsysorg/sglang:v1", "python3", "-m", "sglang.launch_server", "--model", "a/b"], "sglang"),
        (["podman", "run", "vllm/vllm-openai:v1", "bash", "-c", "vllm serve a/b"], "vllm"),
        (["docker", "run", "-p8000:8000", "-it", "ggml-org/llama.cpp:server", "-hf", "a/b:Q4_K_M"], "llama.cpp"),
        (["sudo", "llama-server", "--hf_repo", "a/b", "--hf-file", "x.gguf"], "llama.cpp"),
    ],
)  # fmt: skip
def test_servers_are_found(words: list[str], runtime: str) -> None:
    item = one(of_words(words, HERE)) if words[0] != "sudo" else one(read(" ".join(words), HERE))
    assert item.entry is not None, item
    assert item.entry.runtime == runtime


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm serve 'a/b", "has no end"),
        ('vllm serve "a/b', "has no end"),
        ("vllm serve $(cat", "has no end"),
        ("vllm serve `cat", "has no end"),
        ("cat <<EOF\nx\nEOF", "here-document"),
        ("vllm serve a\0b", "NUL"),
        ("x" * (2 << 20), "bytes are no recipe"),
        ("ls\n" * 600, "commands are no recipe"),
        ("a " * 30_000, "words are no recipe"),
        ("services:\n  a: [", "no YAML"),
        ("services:\n", "services"),
        ("services:\n  a: 3", "must be a mapping"),
        ("services:\n  a: &a [1]\n  b: [" + ", ".join(["*a"] * 100) + "]", "too many aliases"),
        ("services:\n  a: " + "[" * 60 + "]" * 60, "too deep"),
        ("services:\n  a: !!python/object/apply:os.system ['x']", "no YAML"),
        ("[Container]\nImage", "no KEY=VALUE"),
        ("[Container]\nExec=x", "no Image="),
    ],
)
def test_what_cannot_be_read_is_a_named_error(text: str, says: str) -> None:
    with pytest.raises(ImportUnreadable, match=says):
        read(text, HERE)


def test_a_yaml_bomb_is_small_or_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(ImportUnreadable):
        read("\n".join([*lines, "services:", "  a: {image: x}"]), HERE)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("vllm serve", "no_model"),
        ("vllm serve models/a", None),
        ("vllm serve ./a", "relative_path"),
        ("vllm serve a b", "model_unclear"),
        ("vllm serve a/b --max-model-len many", "bad_value"),
        ("vllm serve a/b --tensor-parallel-size 99", "bad_value"),
        ("vllm serve a/b --speculative-config '{'", "bad_value"),
        ("vllm serve a/b --speculative-config '[]'", "bad_value"),
        ('vllm serve a/b --speculative-config \'{"method": "medusa"}\'', "method_unsupported"),
        ('vllm serve a/b --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\'', None),
        ("vllm serve a/b --kv-cache-dtype q9", "kv_type"),
        ("llama-server -m /m.gguf --spec-type dflash", "method_unsupported"),
        ("llama-server -m /m.gguf --spec-type draft-dflash", "no_drafter"),
        ("frobnicate --all", "unknown_command"),
        ("docker run", "no_image"),
        ("docker run --rm ollama/ollama", "runtime_unsupported"),
    ],
)
def test_refusals(text: str, code: str | None) -> None:
    item = one(read(text, HERE))
    if text.endswith("3}'"):
        code = "no_drafter"
    assert (None if item.reason is None else item.reason.code) == code


def test_a_head_in_a_file_of_its_own_is_a_drafter() -> None:
    entry = one(read("llama-server -m /m/a.gguf -md /m/mtp-a.gguf --spec-type draft-mtp -c 4096", HERE)).entry
    assert entry is not None
    assert (entry.drafters[0].method, entry.drafters[0].path) == ("mtp", "/m/mtp-a.gguf")


def test_a_model_that_is_not_in_the_catalogue_has_a_public_shape() -> None:
    entry = one(read("llama-server -hf unsloth/gpt-oss-20b-GGUF:Q8_0 -c 8192", HERE)).entry
    assert entry is not None
    assert entry.variants[0].shape is not None
    assert one(read("vllm serve nobody/knows-this", HERE)).entry is not None


def test_of_a_page_only_the_fenced_blocks_are_read() -> None:
    page = f"""# How we serve it

Don't do this at home: `vllm serve x`.

```bash
export HF_TOKEN={SECRET}
vllm serve Qwen/Qwen3.8-27B
```

Or, with a file:

```yaml
services:
  small: {{image: "ghcr.io/ggml-org/llama.cpp:server", command: "-hf a/b:Q4_K_M -c 4096"}}
```
"""
    first, second = read(page, HERE).items
    assert (first.line, first.what, second.what) == (7, "vllm", "llama.cpp")
    assert "secret" in codes(first)
    with pytest.raises(ImportUnreadable):
        read(page, HERE, Kind.SHELL)


def test_the_kind_can_be_said() -> None:
    assert one(read("FROM a/b", HERE, Kind.MODELFILE)).what == "Ollama"
    with pytest.raises(ImportUnreadable):
        read("vllm serve a/b", HERE, Kind.QUADLET)
    assert read("", HERE).items == ()


UNIT = """
# container-vllm.service
[Unit]
Description=Podman container-vllm.service
[Service]
Environment=PODMAN_SYSTEMD_UNIT=%n
Restart=on-failure
ExecStart=/usr/bin/podman run \\
\t--cidfile=%t/%n.ctr-id \\
\t--rm --sdnotify=conmon -d --device nvidia.com/gpu=all \\
\t-v /srv/models:/models:ro docker.io/vllm/vllm-openai:v0.33.0 --model /models/Qwen3 --max-model-len 8192
ExecStop=/usr/bin/podman stop --ignore --cidfile=%t/%n.ctr-id
[Install]
WantedBy=default.target
"""


def test_a_service_unit_is_what_it_starts() -> None:
    (item,) = read(UNIT, ON_3090).items
    assert item.entry is not None, item.reason
    assert (item.entry.variants[0].path, item.entry.context) == ("/srv/models/Qwen3", 8192)
    assert {"kept_running", "all_gpus"} <= {change.code for change in item.changes}
    native = "[Service]\nExecStart=-/usr/bin/env A=b numactl -N 0 llama-server -m /m/a-Q8_0.gguf -c 4096\nUser=x\n"
    (item,) = read(native, HERE).items
    assert item.entry is not None, item.reason
    assert (item.entry.context, item.entry.variants[0].quantisation) == (4096, "Q8_0")


def test_arguments_of_podman_in_a_unit_bring_mounts_and_variables() -> None:
    unit = """[Container]
Image=ghcr.io/ggml-org/llama.cpp:server-cuda-b11434
PodmanArgs=-v /srv/m:/m --env LLAMA_ARG_CTX_SIZE=8192
Exec=-m /m/x-Q4_K_M.gguf \\
  --no-mmap -ts 1,1
"""
    (item,) = read(unit, HERE).items
    assert item.entry is not None, item.reason
    assert (item.entry.variants[0].path, item.entry.context) == ("/srv/m/x-Q4_K_M.gguf", 8192)


def test_compose_extends_and_continued_lines() -> None:
    text = """
services:
  base:
    image: vllm/vllm-openai:v0.33.0
    volumes: ["/srv/m:/m"]
    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}]}}}
  one:
    extends: {service: base}
    command: |
      --model /m/Qwen3 \\
      --max-model-len 8192 \\
      --max-num-seqs 2
  two:
    extends: {file: other.yml, service: x}
"""
    _, one, two = read(text, ON_3090).items
    assert one.entry is not None, one.reason
    assert (one.entry.variants[0].path, one.entry.context, one.entry.parallel) == ("/srv/m/Qwen3", 8192, 2)
    assert one.entry.image == "docker.io/vllm/vllm-openai:v0.33.0"
    assert "all_gpus" not in {change.code for change in one.changes}  # one device is asked for
    assert "image_kept" not in {change.code for change in one.changes}  # the catalogue has it under its whole name
    assert "extends" in {change.code for change in two.changes}
    for loop in ("extends: a", "extends: b", "extends: nobody"):
        with pytest.raises(ImportUnreadable, match="no other service"):
            read(f"services:\n  a:\n    {loop}\n  b:\n    extends: a\n", HERE)


def test_a_gguf_is_not_called_bf16_where_nothing_says_so() -> None:
    def said(line: str) -> str:
        (item,) = read(line, HERE).items
        assert item.entry is not None
        return item.entry.variants[0].quantisation

    assert said("llama-server -m /m/x.gguf") == "unknown"
    assert said("llama-server -hf a/b-GGUF") == "Q4_K_M"
    assert said("llama-server -hf a/b-GGUF:Q4_K_M -hff b-Q8_0.gguf") == "Q8_0"
    assert said("llama-server -m /m/x-BF16.gguf") == "BF16"


@pytest.mark.parametrize(
    "text",
    ["a" * 250_000, "$" * 250_000, "'a'" * 80_000, "a://" + "x" * 250_000, "?" + "token" * 50_000,
     "```\nx\n```\n" * 20_000, "token=" * 40_000, "${A" * 80_000, "--api-key " * 20_000, "\\" * 250_000],
    ids=["word", "dollars", "quotes", "address", "query", "fences", "pairs", "braces", "flags", "backslashes"],
)  # fmt: skip
def test_a_monster_takes_no_time(text: str) -> None:
    begin = time.process_time()
    with contextlib.suppress(ImportUnreadable):
        read(text, HERE)
    assert time.process_time() - begin < 4
