"""What a model file says of itself, as plain values, and whether a drafter belongs to a target.

Pure: `orchestrator.gguf_file` reads files into these values, the planner decides on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.models import Drafter, Format, Shape, Variant
from orchestrator.plan import Method, Reason

ENGINE_NOTES = "llama.cpp b11434/b11549, tried with tiny models"
DRAFT_VOCAB_SLACK = 128
"""llama.cpp lets a plain draft model's vocabulary differ by this many (padding) tokens."""


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What only a drafter's file says. `block_size` is DFlash's, which drafts one token fewer, and
    DSpark's, which drafts as many (8 of block 8 were drafted by llama.cpp b11549)."""

    method: Method
    block_size: int | None = None
    target_layers: tuple[int, ...] = ()
    target_hidden: int | None = None

    @property
    def longest(self) -> int | None:
        """The longest draft it was trained for, where the file says so."""
        if self.block_size is None or self.block_size < 2:
            return None
        return self.block_size if self.method is Method.DSPARK else self.block_size - 1


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A readable model file. `path` is absolute; sizes are bytes; unknown is None.

    `tokens_digest` is SHA-256 (hex) over the vocabulary in order, so equal digests mean
    equal token numbers. `nextn_layers` counts MTP blocks inside a target.
    """

    path: str
    size: int
    format: Format
    architecture: str | None
    name: str | None
    shape: Shape | None
    tensor_bytes: int
    vocab: int | None
    tokens_digest: str | None
    nextn_layers: int = 0
    drafter: DrafterFacts | None = None
    chat_template: bool = False
    quantisation: str | None = None
    parts: int = 1
    root: str | None = None
    """The folder to mount, where it is not the file's own: a Hugging Face cache's repository."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A model file that cannot be used: a sentence naming the file, and the next step."""

    path: str
    text: str
    hint: str | None = None


Files = Mapping[str, FileFacts | FileProblem]
"""What is known of files, by `location`: the path, or repository, file and revision, that a thing names."""


def location(thing: Variant | Drafter) -> str:
    """The key of a variant's or drafter's files in `Files`."""
    if thing.path is not None:
        return thing.path
    return "".join((str(thing.repository), f"/{thing.file}" if thing.file else "", f"@{thing.revision or 'main'}"))


def stored_at(store: str, thing: Variant | Drafter) -> str:
    """The absolute path where a variant's or drafter's files lie, or stand for what is still to be fetched.

    A `path` is absolute or below the store. A repository `owner/name[:TAG]` that a person put there has the
    folder `hub/owner/name` in the store, and its GGUF file of that tag is `TAG.gguf`; what was pulled lies
    where `orchestrator.weights.shelf` says.
    """
    base = store.rstrip("/")
    if thing.path is not None:
        return thing.path if thing.path.startswith("/") else f"{base}/{thing.path}"
    name, _, tag = str(thing.repository).partition(":")
    folder = f"{base}/hub/{name}"
    return f"{folder}/{tag or 'model'}.gguf" if thing.format is Format.GGUF else folder


def mismatch(target: FileFacts, drafter: FileFacts, method: Method) -> Reason | None:
    """Why this drafter cannot serve this target with this method; None when nothing speaks against it.

    Engines find out late or not at all: another width aborts llama.cpp in an assertion, another
    vocabulary leaves it healthy without speculation, and an EAGLE-3 file given as DFlash answers
    every chat with an error.
    """
    file = drafter.path.rpartition("/")[2]
    declared = drafter.drafter
    if method is Method.DRAFT:
        if declared is not None:
            return Reason(
                "drafter_kind", f"{file} is a {declared.method} drafter, not a draft model of its own", ENGINE_NOTES
            )
        return _vocabulary(target, drafter, slack=DRAFT_VOCAB_SLACK)
    if declared is None or declared.method is not method:
        kind = drafter.architecture if declared is None else declared.method
        return Reason("drafter_kind", f"{file} holds a {kind} model, not a {method} drafter", ENGINE_NOTES)
    wanted = None if target.shape is None else target.shape.hidden
    width = declared.target_hidden or (None if drafter.shape is None else drafter.shape.hidden)
    if wanted is not None and width is not None and wanted != width:
        return Reason("drafter_width", f"{file} was made for width {width}, the target has {wanted}", ENGINE_NOTES)
    if target.shape is not None and declared.target_layers and max(declared.target_layers) >= target.shape.layers:
        layer, layers = max(declared.target_layers), target.shape.layers
        return Reason("drafter_layers", f"{file} reads layer {layer}, the target has {layers} layers", ENGINE_NOTES)
    return _vocabulary(target, drafter, slack=0)


def _vocabulary(target: FileFacts, drafter: FileFacts, *, slack: int) -> Reason | None:
    file = drafter.path.rpartition("/")[2]
    if target.vocab is None or drafter.vocab is None:
        return None
    if abs(target.vocab - drafter.vocab) > slack:
        text = f"{file} knows {drafter.vocab} tokens, the target {target.vocab}"
        return Reason("drafter_vocabulary", text, ENGINE_NOTES)
    digests = target.tokens_digest, drafter.tokens_digest
    if target.vocab == drafter.vocab and None not in digests and digests[0] != digests[1]:
        text = f"{file} numbers its tokens differently from the target"
        return Reason("drafter_vocabulary", text, ENGINE_NOTES)
    return None
