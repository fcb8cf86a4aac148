"""The official OpenAI client against a whole stack."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello."}]


@pytest.fixture(scope="module")
def client(shared_stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared_stack.base_url, api_key="sk-not-an-engine-key", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert {"plain", "spec"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("plain").object == "model"


@pytest.mark.parametrize("model", ["plain", "spec", "Spec/Alias"])
def test_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=HELLO, max_tokens=64, temperature=0)
    assert answer.choices[0].message.content == recital(64)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 64


@pytest.mark.parametrize("model", ["plain", "spec"])
def test_stream(client: openai.OpenAI, model: str) -> None:
    stream = client.chat.completions.create(model=model, messages=HELLO, max_tokens=64, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == recital(64)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="plain", prompt="x", max_tokens=16, temperature=0)
    assert len(answer.choices[0].text) == 16
    parts = client.completions.create(model="plain", prompt="x", max_tokens=16, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts if part.choices) == answer.choices[0].text


def test_a_wrong_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nothing", messages=HELLO)
    assert error.value.code == "model_not_found"
    assert "plain" in str(error.value), "the message names the models there are"


def test_a_stream_left_in_the_middle_ends_the_engines_work(client: openai.OpenAI, shared_stack: Stack) -> None:
    stream = client.chat.completions.create(model="plain", messages=HELLO, max_tokens=1900, stream=True)
    seen = [next(iter(stream)) for _ in range(3)]
    assert len(seen) == 3
    stream.close()

    def idle() -> bool:
        engine = shared_stack.deployment("plain")["engine"]
        key = (shared_stack.paths.engines / f"{engine['id']}.key").read_text()
        transport = httpx.HTTPTransport(uds=engine["socket"])
        with httpx.Client(transport=transport, headers={"authorization": f"Bearer {key}"}) as direct:
            return not any(slot["is_processing"] for slot in direct.get("http://engine/slots").json())

    until_sync(idle, 5, "the engine is idle again")


def test_headers_say_who_answered(shared_stack: Stack) -> None:
    engine = shared_stack.deployment("spec")["engine"]
    answer = shared_stack.chat("spec", 16)
    assert answer.headers["x-outrider-method"] == "dflash"
    assert answer.headers["x-outrider-plan"] == engine["plan"]
    assert engine["id"] in answer.headers["x-outrider-engine"] or "spec-1" in answer.headers["x-outrider-engine"]
    assert answer.headers["x-outrider-host"]
