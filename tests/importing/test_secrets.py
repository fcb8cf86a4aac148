"""No secret of a recipe is shown: not in the answer, not in its JSON, not in an error, wherever it stood."""

from __future__ import annotations

import json

import pytest

from orchestrator.catalogue import shipped
from orchestrator.importing import Here, ImportUnreadable, read
from orchestrator.importing.reading import of_words

HERE = Here(shipped())
KEY = "N0tForYourEyes"
MODEL = "Qwen/Qwen3.8-27B"


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve {MODEL} --api-key {KEY}",
        f"vllm serve {MODEL} --api-key other-key {KEY} --port 1",
        f"vllm serve {MODEL} --api-key -{KEY}",
        f"vllm serve {MODEL} --api_key={KEY} --hf-token {KEY}",
        f"llama-server -hf a/b-GGUF:Q4_K_M -hft {KEY} --api-key {KEY}",
        f"python3 -m sglang.launch_server --model-path {MODEL} --admin-api-key {KEY}",
        f"HF_TOKEN={KEY} VLLM_API_KEY={KEY} vllm serve {MODEL}",
        f"export HF_TOKEN={KEY}\nvllm serve {MODEL} --weird $HF_TOKEN",
        f"docker run -e HF_TOKEN={KEY} --env=AUTHORIZATION={KEY} -eDB_PASS={KEY} vllm/vllm-openai --model {MODEL}",
        f"docker run --label token={KEY} --health-cmd 'curl -u me:{KEY} x' vllm/vllm-openai --model {MODEL} {KEY}",
        f"docker run -e AWS_ACCESS_KEY_ID={KEY} vllm/vllm-openai --model s3://me:{KEY}@host/x",
        f"curl -H 'Authorization: Bearer {KEY}' -u me:{KEY} http://me:a@{KEY}@host/x",
        f"curl 'https://host/x?access_token={KEY}&a=b'",
        f"docker login -u me -p {KEY} ghcr.io",
        f"git clone https://x:{KEY}@host/y",
        f"hf auth login --token {KEY}",
        f"serve-it --secret-key {KEY}",
        f"services:\n  a:\n    image: vllm/x\n    environment: {{HF_TOKEN: {KEY}}}\n    command: --weird {KEY}\n",
        f'services:\n  a:\n    environment:\n      HF_TOKEN: "{KEY}\n    image: x\n',
        f"services:\n  a:\n    environment: {{HF_TOKEN: {KEY}, : }}\n  - x\n",
        f"[Container]\nImage=vllm/x\nEnvironment=HF_TOKEN={KEY}\nHealthCmd=curl -H 'X-Api-Key: {KEY}'\n",
        f"[Container]\nImage=vllm/x\nHF_TOKEN {KEY}\n",
        f'[Service]\nEnvironment="HF_TOKEN={KEY}"\nExecStart=/bin/llama-server -m /m/a.gguf --api-key {KEY}\n',
    ],
)
def test_of_a_text(text: str) -> None:
    try:
        said = json.dumps(read(text, HERE).to_dict())
    except ImportUnreadable as error:
        said = f"{error} {error.hint} {error.evidence}"
    assert KEY not in said


@pytest.mark.parametrize(
    "line",
    [
        f"HF_TOKEN={KEY} vllm serve {MODEL}",
        f"env HF_TOKEN={KEY} vllm serve {MODEL}",
        f"sudo -E vllm serve {MODEL} --api-key {KEY} --port 8000",
        f"something --token {KEY} else {KEY}",
    ],
)
def test_of_words(line: str) -> None:
    assert KEY not in json.dumps(of_words(line.split(), HERE).to_dict())


def test_what_is_no_secret_stays_readable() -> None:
    text = f"vllm serve {MODEL} --api-key EMPTY --max-num-batched-tokens 4096 --tokenizer-mode auto"
    (item,) = read(text, HERE).items
    assert item.text == f"vllm serve {MODEL} --api-key *** --max-num-batched-tokens 4096 --tokenizer-mode auto"
    assert item.entry is not None
    assert item.entry.batch == 4096
