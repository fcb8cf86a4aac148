"""What a command line asks for, in Outrider's words, while it is being read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.importing.secrets import hidden, is_secret
from orchestrator.importing.values import HIDDEN, Change
from orchestrator.kinds import KvType
from orchestrator.models import Format, Ngram, Runtime
from orchestrator.plan import Method, Reason

CONTRACT = "Outrider"
"""The source of what is so because Outrider does it."""
_PLACEHOLDER = re.compile(r"<[^<>]{1,64}>|\bYOUR[-_ ]|^\.\.\.$|PATH[_/]TO")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")


@dataclass(slots=True)
class Recipe:
    """One server that somebody starts. What was not said is None."""

    runtime: Runtime
    model: str | None = None
    """A repository (with `:TAG` for a GGUF file), or an absolute path."""
    file: str | None = None
    revision: str | None = None
    format: Format | None = None
    drafter: str | None = None
    drafter_file: str | None = None
    method: Method | None = None
    draft_tokens: int | None = None
    ngram: Ngram | None = None
    context: int | None = None
    parallel: int | None = None
    kv: KvType | None = None
    attention_backend: str | None = None
    tensor_parallel: int | None = None
    batch: int | None = None
    threads: int | None = None
    image: str | None = None
    trust_remote_code: bool = False
    aliases: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    refusal: Reason | None = None

    def change(self, code: str, was: str | None, becomes: str | None, why: str, source: str | None = None) -> None:
        """Note one difference, once."""
        change = Change(code, None if was is None else hidden(was), becomes, why, source)
        if change not in self.changes:
            self.changes.append(change)

    def refuse(self, code: str, text: str, source: str | None = None) -> None:
        """The first reason stays: it is the one to mend first."""
        if self.refusal is None:
            self.refusal = Reason(code, hidden(text), source)

    def ours(self, was: str, why: str, becomes: str | None = None) -> None:
        """Something that Outrider sets itself."""
        self.change("set_by_outrider", was, becomes, why, CONTRACT)

    def secret(self, name: str) -> None:
        """A secret was given."""
        why = "secrets are not carried over: the daemon reads its own token, and each engine has a key of its own"
        self.change("secret", f"{name}={HIDDEN}", None, why, CONTRACT)

    def config_file(self, was: str) -> None:
        """Options lie in a file."""
        self.refuse("config_file", f"{was}: the file is not read: write its options on the line, without a file")

    def not_carried(self, was: str, why: str = "Outrider has no setting for it") -> None:
        """The engine knows it; nothing here stands for it."""
        self.change("not_carried", was, None, why)

    def unknown(self, was: str, runtime: str, newest: str) -> None:
        """Nobody is known to know it."""
        why = f"{runtime} {newest} has no such option: it is left out, and a start with it would fail"
        self.change("unknown_flag", was, None, why)


@dataclass(frozen=True, slots=True)
class Said:
    """One option as it was given: its name and its values."""

    flag: str
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str | None:
        return self.values[0] if self.values else None

    @property
    def text(self) -> str:
        """As it stood there, a secret hidden."""
        return f"{self.flag} {HIDDEN}" if is_secret(self.flag) and self.values else " ".join((self.flag, *self.values))


def is_flag(word: str) -> bool:
    """Whether a word is an option, and no negative number."""
    return bool(re.match(r"--?[A-Za-z]", word))


def options(words: Iterable[str], arity: Mapping[str, int]) -> Iterator[Said | str]:
    """Options with their values, and words that belong to none. `arity` -1 takes all words up to the next option;
    one that is not in it takes a value where a word follows that is no option."""
    rest = list(words)
    at = 0
    while at < len(rest):
        word = rest[at]
        at += 1
        if not is_flag(word):
            yield word
            continue
        name, equals, value = word.partition("=")
        if equals and word.startswith("--"):
            yield Said(name, (value,))
            continue
        count = arity.get(word)
        taken: list[str] = []
        if count != 0 and is_secret(word) and at < len(rest) and not rest[at].startswith("--"):
            taken.append(rest[at])  # a key may begin with a dash
            at += 1
            count = count or 1
        if count is None:
            count = 1 if at < len(rest) and not is_flag(rest[at]) else 0
        while at < len(rest) and (len(taken) < count or count < 0) and not (count < 0 and is_flag(rest[at])):
            taken.append(rest[at])
            at += 1
        yield Said(word, tuple(taken))


def whole(recipe: Recipe, said: Said) -> int | None:
    """A count above 0 (`32k` and `1M` too); a refusal for what is none."""
    match = _HUMAN.fullmatch(said.value or "")
    number = None
    if match is not None:
        scale = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]]
        number = int(float(match[1]) * scale)
    if number is None or not 0 < number < 1 << 31:
        recipe.refuse("bad_value", f"{said.text}: a whole number above 0 is needed")
        return None
    return number


def placeholder(text: str | None) -> bool:
    """Whether a word stands for something that the reader is to fill in."""
    return text is not None and bool(_PLACEHOLDER.search(text))
