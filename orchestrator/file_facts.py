"""What a model file says of itself, as plain values, and whether a drafter belongs to a target.

Pure: `orchestrator.gguf_file` and `orchestrator.reading` read files into these values, the planner
decides on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.kinds import KvType
from orchestrator.models import Drafter, Format, Shape, Variant
from orchestrator.plan import Method, Reason

ENGINE_NOTES = "llama.cpp b11434/b11549, tried with tiny models"
DRAFT_VOCAB_SLACK = 128
"""llama.cpp lets a plain draft model's vocabulary differ by this many (padding) tokens."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """How weights are quantised: the `quant_method` that engines know it by, bits a weight, the word for people,
    numbers a scale, and the type that the checkpoint orders for the KV cache (vLLM obeys it)."""

    method: str
    bits: int | None
    text: str
    group: int | None = None
    kv: KvType | None = None


@dataclass(frozen=True, slots=True)
class Portions:
    """Bytes of a model's tensors by what they are for. An engine that is told to leave images alone loads no
    `vision`; with tied embeddings it keeps one of `embedding` and `head`; `mtp` is loaded for MTP only."""

    embedding: int
    head: int
    vision: int
    mtp: int
    rest: int

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return self.embedding + self.head + self.vision + self.mtp + self.rest


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What only a drafter's file says. `block_size` is DFlash's, which drafts one token fewer, and
    DSpark's, which drafts as many (8 of block 8 were drafted by llama.cpp b11549).

    `target_layers` are numbered as llama.cpp does: the hidden state that enters layer n. `version` is 2 for
    DFlash 2 (a convolution and a candidate selector); `draft_vocab` is that of an EAGLE-3 head that drafts
    from a part of the vocabulary only.
    """

    method: Method
    block_size: int | None = None
    target_layers: tuple[int, ...] = ()
    target_hidden: int | None = None
    target_depth: int | None = None
    """Layers of the target it was made for."""
    mask_token: int | None = None
    version: int = 1
    markov_rank: int | None = None
    draft_vocab: int | None = None

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
    equal token numbers. `nextn_layers` counts MTP blocks inside a target that have weights.
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
    quantised: Quantised | None = None
    portions: Portions | None = None
    mtp_declared: int = 0
    """Layers of an MTP head that the metadata declares. More than `nextn_layers`: whoever quantised it dropped them."""
    end_tokens: tuple[int, ...] = ()
    """Numbers of the tokens that end a text or pad it."""
    unclear: str | None = None
    """Why there is no `shape`, where the metadata has one that is not understood."""


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

    Told from what the files say, never from their names. Engines find out late or not at all: another
    width aborts llama.cpp in an assertion, another vocabulary leaves it healthy without speculation, an
    EAGLE-3 file given as DFlash answers every chat with an error, and a mask token that ends texts drafts
    nothing that is accepted.
    """
    file = drafter.path.rpartition("/")[2]
    declared = drafter.drafter
    if method is Method.DRAFT:
        if declared is not None:
            return Reason(
                "drafter_kind", f"{file} is a {declared.method} drafter, not a draft model of its own", ENGINE_NOTES
            )
        slack = DRAFT_VOCAB_SLACK if drafter.format is Format.GGUF else 0  # vLLM wants the same number of rows
        return _vocabulary(target, drafter, slack=slack)
    if declared is None or declared.method is not method:
        kind = drafter.architecture if declared is None else declared.method
        return Reason("drafter_kind", f"{file} holds a {kind} model, not a {method} drafter", ENGINE_NOTES)
    wanted = None if target.shape is None else target.shape.hidden
    width = declared.target_hidden or (None if drafter.shape is None else drafter.shape.hidden)
    if wanted is not None and width is not None and wanted != width:
        return Reason("drafter_width", f"{file} was made for width {width}, the target has {wanted}", ENGINE_NOTES)
    return _layers(target, declared, file) or _mask(target, declared, file) or _vocabulary(target, drafter, slack=0)


def no_mtp_head(target: FileFacts) -> Reason | None:
    """Why a target cannot draft with a head of its own; None when it can."""
    file = target.path.rpartition("/")[2]
    if target.nextn_layers:
        return None
    if target.mtp_declared:
        text = f"{file} declares an MTP head and has no weights for it: whoever quantised it left them out"
        return Reason("no_mtp_head", text, "its own tensors")
    return Reason("no_mtp_head", f"{file} has no MTP head", "its own tensors")


def _layers(target: FileFacts, declared: DrafterFacts, file: str) -> Reason | None:
    depth = None if target.shape is None else target.shape.layers
    if depth is None:
        return None
    if declared.target_depth is not None and declared.target_depth != depth:
        text = f"{file} was made for a target of {declared.target_depth} layers, this one has {depth}"
        return Reason("drafter_layers", text, "its configuration")
    furthest = max(declared.target_layers, default=0)
    # what follows the last layer is there for whoever was trained on it in transformers, and not in llama.cpp
    if furthest > depth or (furthest == depth and target.format is Format.GGUF):
        return Reason("drafter_layers", f"{file} reads layer {furthest}, the target has {depth} layers", ENGINE_NOTES)
    return None


def _mask(target: FileFacts, declared: DrafterFacts, file: str) -> Reason | None:
    mask = declared.mask_token
    if mask is None or declared.method not in (Method.DFLASH, Method.DSPARK):
        return None
    if target.vocab is not None and mask >= target.vocab:
        text = f"{file} masks with token {mask}, the target has {target.vocab} tokens"
        return Reason("drafter_mask", text, "its configuration")
    if mask in target.end_tokens:
        text = f"{file} masks with token {mask}, which ends or pads the target's texts"
        return Reason("drafter_mask", text, "its configuration")
    return None


def _vocabulary(target: FileFacts, drafter: FileFacts, *, slack: int) -> Reason | None:
    file = drafter.path.rpartition("/")[2]
    if target.vocab is None or drafter.vocab is None:
        return None
    if abs(target.vocab - drafter.vocab) > slack:
        text = f"{file} knows {drafter.vocab} tokens, the target {target.vocab}"
        return Reason("drafter_vocabulary", text, ENGINE_NOTES)
    digests = target.tokens_digest, drafter.tokens_digest
    if (
        target.format is drafter.format
        and target.vocab == drafter.vocab
        and None not in digests
        and digests[0] != digests[1]
    ):
        text = f"{file} numbers its tokens differently from the target"
        return Reason("drafter_vocabulary", text, ENGINE_NOTES)
    return None
