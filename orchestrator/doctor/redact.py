"""Taking out of a document what names a person, a machine or a network, and every secret. Pure.

What is the same before is the same afterwards: a GPU's UUID becomes `gpu-1` wherever it stands, so that a reader
still sees that the CDI specification and the driver speak of one GPU. Numbers are given in the order of appearance
and mean nothing outside one document. In doubt a word goes: a bundle that says too little can be asked about.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

REMOVED = "(removed)"
_DEEPEST = 64
_LONGEST = 512 * 1024
_SHORTEST_NAME = 3
_WORDS = """
    amd amdgpu arch cdi cuda cpu debian docker driver fedora gpu host kernel kfd kvm linux localhost localdomain
    nouveau nvidia podman render root rocm server state system systemd ttm ubuntu user users video vm outrider
"""
_NEVER_NAMES = frozenset(_WORDS.split())
"""Words that the document needs, even where somebody calls a machine or a user so."""

_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase)?$|passw|secret|token|credential|api_?key|access_?key|private|cookie|session(?!s$)|"
    r"(?:^|_)auth(?:$|_|oriz)|_key$|signature|(?:^|_)sig$",
    re.IGNORECASE,
)
_SERIAL_NAME = re.compile(r"serial|machine_?id|boot_?id|asset_?tag|product_?uuid|hostname|host_?name", re.IGNORECASE)
_NOT_SECRET = frozenset({"tokens", "draft_tokens", "max_tokens", "prompt_tokens", "context_tokens", "session_id"})

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_GPU = re.compile(rf"\b(?:GPU|MIG)-(?:{_UUID}|[0-9a-fA-F]{{8,32}})(?:/\d+/\d+)?")
_PLAIN_UUID = re.compile(rf"(?<![0-9a-fA-F]){_UUID}(?![0-9a-fA-F])")
_MAC = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){2})?[0-9a-fA-F]{2}(?![0-9a-fA-F:])")
_LOGIN = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,31}://)[^\s'\"<>]{0,1024}@(?!sha256:)")
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?:(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])")
_TOKEN = re.compile(
    r"\b(?:hf_\w{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{8,}|"
    r"nvapi-[\w-]{16,}|dckr_pat_[\w-]{8,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_BEARER = re.compile(r"\b(Authorization:\s*(?:Bearer|Basic|Digest)?|Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]{3,40}-----[^-]*(?:-----END [A-Z ]{3,40}-----)?")
_HEX = re.compile(r"(?<!sha256:)(?<![0-9a-zA-Z_])(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![0-9a-zA-Z])")
_ASSIGNED = re.compile(
    r"""(?<![\w-])([\w.-]{0,64}?(?:passw|passphrase|secret|token|credential|key|private|cookie|session|auth|signature|sig|serial|uuid|"""
    r"""machine.?id|boot.?id|asset.?tag|host.?name)[\w-]{0,64})(["']?\s?[=:]\s?)("[^"]*"|'[^']*'|[^\s,;&"'}\]]+)""",
    re.IGNORECASE,
)
_ARGUMENT = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]{0,64})(\s+[\"']?)(?![-\d]+\b)([^\s\"',;]{4,})")
_BY_ID = re.compile(r"(by-(?:id|label|path|uuid|partuuid|partlabel)/)[^\s,;\"']+")
_PRIVATE_DOMAIN = re.compile(
    r"(?<![\w.-])(?:[A-Za-z0-9_-]{1,63}\.){1,8}"
    r"(?:lan|local|home|internal|intranet|corp|private|localdomain|home\.arpa|fritz\.box|ts\.net)(?![\w-])"
)
_HOME = re.compile(r"(/(?:var/)?home/|/Users/|/run/user/|user-)([^/\s:;,'\"\\]+)")
_SERIAL = re.compile(r"\b((?:serial(?:[ _-]?(?:number|no))?|s/n)\.?\s*[:=#]\s*)\S+", re.IGNORECASE)

_PLAIN_ADDRESSES = ("127.", "0.0.0.0", "255.")  # noqa: S104 - said of no machine


class Redactor:
    """One document's pseudonyms. `hosts` and `users` are names that must not stand in it."""

    def __init__(self, *, hosts: Collection[str] = (), users: Collection[str] = ()) -> None:
        self._seen: dict[str, dict[str, str]] = {}
        self._hosts = _names(part for host in hosts for part in (host, host.partition(".")[0]))
        self._users = _names(users, domain=False)

    def document(self, value: Any) -> Any:
        """The same value without what must not be told. Mappings, sequences, texts and numbers; else its text."""
        return self._value(value, 0)

    def text(self, text: str) -> str:
        """The same text without what must not be told."""
        cut = text[:_LONGEST]
        cut = _PEM.sub(REMOVED, cut)
        cut = _LOGIN.sub(rf"\g<1>{REMOVED}@", cut)
        cut = _BEARER.sub(rf"\g<1> {REMOVED}", cut)
        cut = _TOKEN.sub(REMOVED, cut)
        cut = _SERIAL.sub(rf"\g<1>{REMOVED}", cut)
        cut = _ASSIGNED.sub(_assigned, cut)
        cut = _ARGUMENT.sub(_assigned, cut)
        cut = _BY_ID.sub(rf"\g<1>{REMOVED}", cut)
        cut = _GPU.sub(self._named("gpu", _gpu_key), cut)
        cut = _PLAIN_UUID.sub(self._named("uuid", str.lower), cut)
        cut = _HEX.sub(self._named("id", str.lower), cut)
        cut = _MAC.sub(self._named("mac", str.lower), cut)
        cut = _EMAIL.sub(self._named("mail", str.lower), cut)
        cut = _IPV4.sub(self._ipv4, cut)
        cut = _IPV6.sub(self._ipv6, cut)
        cut = _HOME.sub(self._home, cut)
        cut = _PRIVATE_DOMAIN.sub(self._named("host", _host_key), cut)
        if self._hosts is not None:
            cut = self._hosts.sub(self._named("host", _host_key), cut)
        if self._users is not None:
            cut = self._users.sub(self._named("user", str), cut)
        return cut if len(text) <= _LONGEST else f"{cut} (cut after {_LONGEST} characters)"

    def _value(self, value: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            return REMOVED
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            named = _hidden(str(value.get("name", "")))  # {"name": "A_TOKEN", "value": "..."}
            return {
                self.text(str(key)): REMOVED if named and key == "value" else self._entry(str(key), item, depth)
                for key, item in value.items()
            }
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return [
                REMOVED if _is_option(before) and _hidden(str(before)) else self._value(item, depth + 1)
                for before, item in zip((None, *value), value, strict=False)
            ]
        if isinstance(value, set | frozenset):
            return sorted(self._value(str(item), depth + 1) for item in value)
        return self.text(str(value))

    def _entry(self, key: str, value: Any, depth: int) -> Any:
        if value is not None and _hidden(key) and not isinstance(value, bool):
            return REMOVED
        return self._value(value, depth + 1)

    def _named(self, kind: str, key: Callable[[str], str]) -> Callable[[re.Match[str]], str]:
        return lambda match: self._pseudonym(kind, key(match[0]))

    def _pseudonym(self, kind: str, what: str) -> str:
        known = self._seen.setdefault(kind, {})
        return known.setdefault(what, f"{kind}-{len(known) + 1}")

    def _home(self, match: re.Match[str]) -> str:
        if match[2] in {"root", "user", "service"} or (match[1] == "user-" and not match[2][0].isdigit()):
            return match[0]
        if match[1] in {"/run/user/", "user-"}:
            number, dot, rest = match[2].partition(".")
            return f"{match[1]}{self._pseudonym('uid', number) if number.isdigit() else number}{dot}{rest}"
        return f"{match[1]}{self._pseudonym('user', match[2])}"

    def _ipv4(self, match: re.Match[str]) -> str:
        parts = match[0].split(".")
        if any(int(part) > 255 or (len(part) > 1 and part[0] == "0") for part in parts):
            return match[0]
        return match[0] if match[0].startswith(_PLAIN_ADDRESSES) else self._pseudonym("ip", match[0])

    def _ipv6(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv6Address(match[0])
        except ValueError:
            return match[0]
        plain = address.is_loopback or address.is_unspecified
        return match[0] if plain else self._pseudonym("ip", str(address))


def _hidden(name: str) -> bool:
    """Whether a name promises a secret or a serial number."""
    bare = name.strip().lower().replace("-", "_").rpartition(".")[2]
    if bare in _NOT_SECRET:
        return False
    return bool(_SECRET_NAME.search(bare) or _SERIAL_NAME.search(bare))


def _is_option(word: object) -> bool:
    """`--token`, whose value is the next word."""
    return isinstance(word, str) and word.startswith("-") and "=" not in word


def _assigned(match: re.Match[str]) -> str:
    """`NAME=value`, `name: value` and `--name value` where the name promises a secret."""
    if not _hidden(match[1]) or match[3].startswith(REMOVED):
        return match[0]
    return f"{match[1]}{match[2]}{REMOVED}"


def _gpu_key(text: str) -> str:
    return text.lower()


def _host_key(name: str) -> str:
    """A host with its domain is the host without."""
    return name.partition(".")[0].lower()


def _names(names: Iterable[str], *, domain: bool = True) -> re.Pattern[str] | None:
    """What matches any of these names as a word, a domain behind it included; None when there is none to look for."""
    wanted = {
        name.strip()
        for name in names
        if len(name.strip()) >= _SHORTEST_NAME and name.strip().lower() not in _NEVER_NAMES and not name.isdigit()
    }
    if not wanted:
        return None
    words = "|".join(re.escape(name) for name in sorted(wanted, key=len, reverse=True))
    if domain:
        return re.compile(rf"(?<!\w)(?:{words})(?:\.[A-Za-z][\w-]*)*(?!\w)", re.IGNORECASE)
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)")
