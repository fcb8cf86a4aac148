"""`outrider run MODEL`: start a model if it does not run, then talk to it through the gateway."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import LOAD, Common, Json, Model, Timeout, at, common
from api.cli.output import note, print_json
from orchestrator.errors import OutriderError, UsageError

if TYPE_CHECKING:
    import httpx

    from api.cli.client import Client

QUIET = 600.0
"""Seconds without a byte of an answer: a long prompt on a slow machine takes its time."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    ctx: typer.Context,
    model: Model,
    *,
    prompt: Annotated[
        str | None,
        typer.Option("-p", "--prompt", metavar="TEXT", help="Answer this and end. Input from a pipe follows it."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="The longest answer: a small model may never end by itself.")
    ] = 1024,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="0 is the most likely text.")
    ] = None,
    timeout: Timeout = LOAD,
    as_json: Json = False,
) -> None:
    """Chat with a model, starting it if needed."""
    piped = None if sys.stdin.isatty() else sys.stdin.read()
    text = "\n\n".join(part for part in (prompt, piped) if part and part.strip())
    if not text and (piped is not None or as_json):
        raise UsageError("there is nothing to say", hint="give -p TEXT, or pipe a text in")
    extra: dict[str, Any] = {"max_tokens": max_tokens}
    if temperature is not None:
        extra["temperature"] = temperature
    options = common(ctx)
    name = ensure_ready(options, model, timeout)
    with Chat(options, name, extra) as talk:
        if text:
            answer = talk.say(text, None if as_json else _print_piece)
            if as_json:
                print_json(answer)
            else:
                _end_of(answer)
            return
        _converse(talk)


def ensure_ready(options: Common, model: str, timeout: float) -> str:
    """The model's public name, once an engine of it serves."""
    from api.cli.client import Client
    from api.cli.lifecycle import start_model
    from orchestrator.errors import NotFound

    with Client(options.paths) as client:
        try:
            view = client.get(at("deployments", model))
        except NotFound:
            view = None
        if view is not None and view["state"] != "ready" and view["desired"] == "on_demand":
            return _woken(client, options, str(view["deployment"]), timeout)
    if view is None or view["state"] != "ready":
        view = start_model(options, model, wait=True, timeout=timeout)
        note(f"{view['deployment']} is ready")
    return str(view["deployment"])


def _woken(client: Client, options: Common, name: str, timeout: float) -> str:
    """Bring a model that is there on demand as any client does, by asking it something; what a person said they want
    of it stays. How far it is can be seen meanwhile."""
    from api.cli.following import wait_for
    from api.cli.output import ticker

    refused: list[OutriderError] = []

    def ask() -> None:
        try:
            with Chat(options, name, {"max_tokens": 1}) as talk:
                talk.say("Hi", None)
        except OutriderError as error:
            refused.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    with ticker(f"{name}: asked for") as shown:
        wait_for(client, name, lambda _view: not asking.is_alive(), shown, timeout=timeout)
    if refused:
        raise refused[0]
    note(f"{name} is ready")
    return name


def _converse(talk: Chat) -> None:
    note("Ctrl-D or /bye ends, /clear forgets what was said.")
    while True:
        try:
            text = input(">>> ").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        match text:
            case "":
                continue
            case "/bye" | "/exit" | "/quit":
                return
            case "/clear":
                talk.messages.clear()
                continue
            case _:
                pass
        try:
            _end_of(talk.say(text, _print_piece))
        except KeyboardInterrupt:
            note("\n(interrupted)")
        except OutriderError as error:
            note(f"\nerror[{error.code}]: {error.detail}")


def _end_of(answer: Mapping[str, Any]) -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()
    if answer["finish_reason"] == "length":
        note("(cut at its longest: --max-tokens N allows more)")


def _print_piece(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class Chat:
    """A conversation through the gateway; a context manager. `messages` is what was said so far."""

    def __init__(self, options: Common, model: str, extra: Mapping[str, Any]) -> None:
        import httpx

        from api.cli.client import PLAIN
        from orchestrator.config import client_url, load

        self.base_url = f"{client_url(load(options.paths).gateway.listen)}/v1"
        self.messages: list[dict[str, str]] = []
        self._model = model
        self._extra = dict(extra)
        self._http = httpx.Client(timeout=httpx.Timeout(10.0, read=QUIET), trust_env=False, verify=PLAIN)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def say(self, text: str, piece: Callable[[str], None] | None) -> dict[str, Any]:
        """Ask; `piece` gets the answer's text as it comes. What was not answered is not remembered."""
        import httpx

        asked = {"role": "user", "content": text}
        body = {"model": self._model, "messages": [*self.messages, asked], "stream": True, **self._extra}
        body["stream_options"] = {"include_usage": True}
        answer: dict[str, Any] = {"model": self._model, "content": "", "finish_reason": None, "usage": None}
        try:
            with self._http.stream("POST", f"{self.base_url}/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise gateway_error(response)
                for chunk in _chunks(response):
                    _take(chunk, answer, piece)
        except httpx.HTTPError as error:
            raise OutriderError(
                f"the gateway at {self.base_url} broke off: {str(error) or type(error).__name__}",
                hint="`outrider status` says whether it runs; its log is in the logs folder",
            ) from error
        self.messages += [asked, {"role": "assistant", "content": answer["content"]}]
        return answer


def gateway_error(response: httpx.Response) -> OutriderError:
    """The gateway's refusal, in OpenAI's form, as an error."""
    from api.cli.client import rebuilt

    try:
        said = response.json().get("error")
    except (ValueError, AttributeError):
        said = None
    if not isinstance(said, dict):
        said = {"message": f"the gateway answered {response.status_code}: {response.text[:200]}"}
    again = response.headers.get("retry-after")
    return rebuilt(
        str(said.get("code") or said.get("type") or "gateway"),
        str(said.get("message")),
        status=response.status_code if response.status_code in {404, 504} else 500,
        hint=f"try again in {again} s" if again else "`outrider ps` shows what serves",
        retryable=again is not None,
    )


def _chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            said = chunk["error"]
            raise OutriderError(f"the answer broke off: {said.get('message') if isinstance(said, dict) else said}")
        yield chunk


def _take(chunk: Mapping[str, Any], answer: dict[str, Any], piece: Callable[[str], None] | None) -> None:
    if chunk.get("usage"):
        answer["usage"] = chunk["usage"]
    for choice in chunk.get("choices", ()):
        text = choice.get("delta", {}).get("content")
        if text:
            answer["content"] += text
            if piece is not None:
                piece(text)
        if choice.get("finish_reason"):
            answer["finish_reason"] = choice["finish_reason"]
