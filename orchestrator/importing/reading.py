"""A text, of whatever form, to the answer. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from orchestrator.importing import building, compose, container, elsewhere, modelfile, quadlet, server, shell
from orchestrator.importing.container import Container
from orchestrator.importing.judging import Here
from orchestrator.importing.known import variables
from orchestrator.importing.recipe import Recipe, is_flag
from orchestrator.importing.secrets import given, hidden, is_secret, shown, without
from orchestrator.importing.values import (
    MOST_BYTES,
    Command,
    Imported,
    ImportUnreadable,
    Item,
    Kind,
    Outcome,
)
from orchestrator.models import Runtime
from orchestrator.plan import Reason

MOST_COMMANDS = 500
MOST_BLOCKS = 200
_FENCE = re.compile(r"\s{0,8}(?:```|~~~)")
_DEVICE_ENV = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_HUB_ENV = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_CACHE")


def read(text: str, here: Here, kind: Kind = Kind.AUTO) -> Imported:
    """Every command, service or unit of the text, in its order; of a Markdown text its fenced blocks alone.

    Raises `ImportUnreadable`.
    """
    if len(text.encode(errors="replace")) > MOST_BYTES:
        raise ImportUnreadable(f"more than {MOST_BYTES} bytes are no recipe", hint="give the command lines alone")
    if "\0" in text:
        raise ImportUnreadable("the text holds NUL bytes", hint="give a text file")
    blocks = _fenced(text) if kind is Kind.AUTO else ()
    if blocks:
        items = tuple(item for block in blocks for item in _read(block, here, Kind.AUTO))
    else:
        items = _read(text, here, kind)
    return _discreet(items, given(text))


def _discreet(items: tuple[Item, ...], values: Sequence[str]) -> Imported:
    """The answer without what the text gave to secret names, wherever it was repeated."""
    found = []
    for item in items:
        reason = None if item.reason is None else replace(item.reason, text=hidden(without(item.reason.text, values)))
        changes = tuple(c if c.was is None else replace(c, was=hidden(without(c.was, values))) for c in item.changes)
        found.append(replace(item, text=without(item.text, values), reason=reason, changes=changes))
    return Imported(tuple(found))


def _fenced(text: str) -> list[str]:
    """The fenced blocks of a Markdown text, each with as many empty lines before it as there were lines."""
    blocks: list[str] = []
    lines: list[str] | None = None
    for number, line in enumerate(text.splitlines()):
        if _FENCE.match(line) is not None:
            if lines is None:
                lines = [""] * (number + 1)
            else:
                blocks.append("\n".join(lines) + "\n")
                lines = None
                if len(blocks) > MOST_BLOCKS:  # here and now: each has all lines before it
                    raise ImportUnreadable(f"more than {MOST_BLOCKS} blocks are no recipe", line=number + 1)
        elif lines is not None:
            lines.append(line)
    return blocks


def _read(text: str, here: Here, kind: Kind) -> tuple[Item, ...]:
    kind = _kind(text) if kind is Kind.AUTO else kind
    if kind is Kind.MODELFILE:
        return (modelfile.read(text),)
    if kind is Kind.COMPOSE:
        found = compose.services(text)
        return tuple(_contained(c, here, 1, f"service {name}") for name, c in found.items())
    if kind is Kind.QUADLET:
        started = quadlet.service(text)
        if started is not None:
            item = _command(started[0], here)
            return (replace(item, changes=(*started[1], *item.changes)),)
        return (_contained(quadlet.unit(text), here, 1, "container unit"),)
    commands = shell.commands(text)
    if len(commands) > MOST_COMMANDS:
        raise ImportUnreadable(f"more than {MOST_COMMANDS} commands are no recipe")
    return tuple(_prose_together([_command(command, here) for command in _joined(commands)]))


def _prose_together(items: Sequence[Item]) -> Iterator[Item]:
    """Several things in a row that are no commands are a text around commands: one item, not a refusal for each."""
    for unknown, run in groupby(items, key=lambda item: item.what == elsewhere.UNKNOWN):
        together = list(run)
        if not unknown or len(together) == 1:
            yield from together
            continue
        first, last = together[0], together[-1]
        where = f"from line {first.line} to {last.line}" if first.line < last.line else f"in line {first.line}"
        why = f"{where} stands text, or commands that Outrider does not know; a command alone is looked at by itself"
        yield Item(Outcome.EXPLAINED, "text", first.line, first.text, None, Reason("no_command", why), ())


def _joined(commands: Sequence[Command]) -> list[Command]:
    """Options that stand on lines of their own, without a program, are one list of options."""
    found: list[Command] = []
    for command in commands:
        last = found[-1] if found else None
        if last is not None and is_flag(command.words[0]) and is_flag(last.words[0]):
            unknown = (*last.unknown, *command.unknown)
            found[-1] = replace(last, words=(*last.words, *command.words), unknown=unknown)
        else:
            found.append(command)
    return found


def of_words(words: Sequence[str], here: Here) -> Imported:
    """A command line that a shell has read already."""
    if any("\0" in word for word in words) or sum(map(len, words)) > MOST_BYTES:
        raise ImportUnreadable("the command line is no recipe")
    rest, env = list(words), dict[str, str]()
    while rest and (match := shell.ASSIGNMENT.fullmatch(rest[0])):
        env[match[1]] = match[2]
        del rest[0]
    if not rest:
        return Imported(())
    said = "\n".join(f"{shlex.quote(name)} {shlex.quote(value)}" for name, value in pairwise(words))
    return _discreet((_command(Command(tuple(rest), env), here),), (*given(said), *given("\n".join(words))))


def _kind(text: str) -> Kind:
    if quadlet.looks(text):
        return Kind.QUADLET
    if compose.looks(text):
        return Kind.COMPOSE
    return Kind.MODELFILE if modelfile.looks(text) else Kind.SHELL


def _command(command: Command, here: Here) -> Item:
    command = replace(command, words=server.unwrapped(command.words))
    text = shown(command.words, command.env)
    if command.words[0].rpartition("/")[2] in ("docker", "podman", "nerdctl") and "run" in command.words[1:3]:
        words = command.words[command.words.index("run") + 1 :]
        made = container.run(words)
        if made.image is None:
            return _refused(command, text, "no_image", "no image is named")
        return _unknown(command, text) or _contained(made, here, command.line, text)
    found = server.find(command.words)
    if found is None and is_flag(command.words[0]):
        runtime = server.guess(command.words)
        found = None if runtime is None else (runtime, command.words)
    if found is None:
        outcome, what, reason, changes = elsewhere.explain(command.words)
        # without its environment, which an `export` far above may have set
        return Item(outcome, what, command.line, shown(command.words, {}), None, reason, changes)
    runtime, words = found
    recipe = server.read(runtime, words, command.env)
    _environment(recipe, command.env)
    if command.unknown:
        what = ", ".join(command.unknown)
        why = f"{what} would have to be run to be known, and nothing is run: write its value there"
        recipe.refuse("substitution", why)
    return building.item(recipe, None, here, command.line, text)


def _contained(made: Container, here: Here, line: int, text: str) -> Item:
    """A container: its words may begin with a program, or be the server's own after its entrypoint."""
    image = made.image or ""
    other = elsewhere.of_image(image)
    if other is not None:
        outcome, what, reason, changes = elsewhere.runtime(other)
        return Item(outcome, what, line, text, None, reason, (*made.changes, *changes))
    words = made.words if made.entrypoint is None else (*made.entrypoint.split(), *made.words)
    found = server.find(words) or _after_entrypoint(image, made.words)
    if found is None:
        why = f"{image or 'the container'} is no image of vLLM, llama.cpp or SGLang that is known by its name"
        return Item(Outcome.REFUSED, "container", line, text, None, Reason("unknown_image", why), tuple(made.changes))
    recipe = server.read(*found, made.env)
    _environment(recipe, made.env)
    return building.item(recipe, made, here, line, text)


def _after_entrypoint(image: str, words: tuple[str, ...]) -> tuple[Runtime, tuple[str, ...]] | None:
    runtime = server.of_image(image)
    if runtime is None or (words and words[0] in ("bash", "sh", "sleep")):
        return None
    return runtime, words


def _environment(recipe: Recipe, env: Mapping[str, str]) -> None:
    for name, value in env.items():
        was = f"{name}={value}"[:200]
        if is_secret(name):
            recipe.secret(name)
        elif name in _DEVICE_ENV:
            why = "an engine gets the devices of its plan by name, and no other"
            recipe.change("named_device", was, "the plan's devices by name", why, "Outrider")
        elif name in _HUB_ENV:
            why = "weights lie in the store, and engines have no network"
            recipe.change("hub_cache", was, "the store", why, "Outrider")
        elif name in variables() and recipe.runtime is Runtime.LLAMA_CPP:
            continue  # read as the option it stands for
        elif name.startswith("LLAMA_ARG_"):
            recipe.not_carried(was, "no option of llama-server is known that it stands for")
        else:
            recipe.change("env_not_carried", was, None, "what an engine's environment holds comes with its plan")


def _unknown(command: Command, text: str) -> Item | None:
    if not command.unknown:
        return None
    what = ", ".join(command.unknown).replace("\n", " ")[:200]
    why = f"{what} would have to be run to be known, and nothing is run: write its value there"
    return _refused(command, text, "substitution", why)


def _refused(command: Command, text: str, code: str, why: str) -> Item:
    return Item(Outcome.REFUSED, "container", command.line, text, None, Reason(code, why), ())
