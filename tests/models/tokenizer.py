"""The vocabulary of the test models, the two texts they recite, and the chat template.

A model recites a fixed cycle of 40 characters for ever: `FIRST`, or `SECOND` where the prompt
has the word `MARKER` (targets that listen for it). The two share no character, so one foreign
character in an answer proves that two requests got mixed up. Each character is one token.
"""

from __future__ import annotations

import string

import gguf

FIRST = string.ascii_lowercase + string.digits + ",. \n"
SECOND = string.ascii_uppercase + "!#$%&()*+-/:;="
CYCLE = len(FIRST)
"""Tokens in a cycle."""
assert len(SECOND) == CYCLE
assert not set(FIRST) & set(SECOND)

MARKER = "UPPER"
"""The word in a prompt after which a listening target recites `SECOND`."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def recital(tokens: int, *, second: bool = False, start: int = 0) -> str:
    """The text of `tokens` generated tokens, from place `start` of the cycle on."""
    text = SECOND if second else FIRST
    return "".join(text[(start + i) % CYCLE] for i in range(tokens))


def _byte_names() -> list[str]:
    """The printable names that byte-level BPE gives to the 256 bytes."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    names, moved = [], 0
    for byte in range(256):
        names.append(chr(byte if byte in plain else 256 + moved))
        moved += byte not in plain
    return names


BYTES = _byte_names()
# merges build the marker letter by letter, and "th" so that ordinary prompts use one as well
_MERGED = ["th", *(MARKER[:i] for i in range(2, len(MARKER) + 1))]
MERGES = [f"{word[:-1]} {word[-1]}" for word in _MERGED]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
VOCABULARY = 272
"""Tokens in all; the rest is padding."""

_USED = [*BYTES, *_MERGED, *SPECIAL]
TOKENS = [*_USED, *(f"<|unused{i}|>" for i in range(VOCABULARY - len(_USED)))]
IDS = {token: i for i, token in enumerate(TOKENS)}

END, PAD, MASK = IDS["<|im_end|>"], IDS["<|endoftext|>"], IDS["<|mask|>"]
NEWLINE = IDS[BYTES[ord("\n")]]
MARK = IDS[MARKER]
FIRST_IDS = [IDS[BYTES[ord(c)]] for c in FIRST]
SECOND_IDS = [IDS[BYTES[ord(c)]] for c in SECOND]


def _kind(token: str) -> gguf.TokenType:
    if token in SPECIAL:
        return gguf.TokenType.CONTROL
    return gguf.TokenType.UNUSED if token.startswith("<|unused") else gguf.TokenType.NORMAL


def write(writer: gguf.GGUFWriter, *, foreign: bool = False) -> None:
    """Put the tokenizer into a model file.

    `foreign` writes another one, of the same size and with the bytes in the opposite order:
    llama.cpp compares a draft model's tokens with the target's, and refuses it.
    """
    tokens = [*reversed(TOKENS[:256]), *TOKENS[256:]] if foreign else TOKENS
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([_kind(token) for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(PAD)
    writer.add_bos_token_id(PAD)
    writer.add_mask_token_id(MASK)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
