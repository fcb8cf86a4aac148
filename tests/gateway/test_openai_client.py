"""The official client, as most users come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from tests.gateway.stack import Stack
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture(loop_scope="package")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    host, port = stack.gateway.address
    async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as made:
        yield made


async def test_chat(stack: Stack, client: openai.AsyncOpenAI) -> None:
    (engine,) = await stack.serve("oa-chat")
    answer = await client.chat.completions.create(model="oa-chat", messages=HELLO)
    assert answer.choices[0].message.content == "x" * 8
    assert engine.requests[0].header("authorization") == "Bearer key-of-oa-chat-0"


async def test_stream(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.serve("oa-stream")
    stream = await client.chat.completions.create(
        model="oa-stream", messages=HELLO, stream=True, extra_body={"fake": {"chunks": 20}}
    )
    assert stream.response.headers["x-outrider-method"] == "dflash"
    words = [chunk.choices[0].delta.content async for chunk in stream]
    assert words == [f"w{index} " for index in range(20)]


async def test_completions(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.serve("oa-text")
    answer = await client.completions.create(model="oa-text", prompt="hi")
    assert answer.choices[0].text == "x" * 8


async def test_models(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.serve("oa-model", aliases=["org/oa-model"])
    listed = [model.id async for model in await client.models.list()]
    assert "oa-model" in listed
    assert (await client.models.retrieve("org/oa-model")).id == "oa-model"


async def test_a_wrong_model(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.serve("oa-right")
    with pytest.raises(openai.NotFoundError, match="models here: ") as caught:
        await client.chat.completions.create(model="oa-wrong", messages=HELLO)
    assert caught.value.code == "model_not_found"


async def test_leaving_in_the_middle(stack: Stack, client: openai.AsyncOpenAI) -> None:
    (engine,) = await stack.serve("oa-left")
    stream = await client.chat.completions.create(
        model="oa-left", messages=HELLO, stream=True, extra_body={"fake": {"chunks": 9, "hold_after": 2}}
    )
    await anext(stream)
    await stream.close()
    left = time.monotonic()
    await until(lambda: engine.cancelled == 1, 5)
    assert time.monotonic() - left < 1.0


async def test_a_lost_engine_is_an_error_not_an_end(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.serve("oa-lost")
    stream = await client.chat.completions.create(
        model="oa-lost", messages=HELLO, stream=True, extra_body={"fake": {"chunks": 9, "die_after": 2}}
    )
    assert [(await anext(stream)).choices[0].delta.content for _ in range(2)] == ["w0 ", "w1 "]
    with pytest.raises(openai.APIError, match="lost in the middle"):
        await anext(stream)
