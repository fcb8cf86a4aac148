"""The resume machine against any server and any crash: what is stored is the file, or nothing is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.weights.resuming import Note, Target, digest_name, judge, trusted

DATA = bytes(range(200))
TARGET = Target("org/m", "c" * 40, "m.gguf", len(DATA), hashlib.sha256(DATA).hexdigest(), None)


@dataclass
class Disk:
    """A partial file and its note, as they survive."""

    content: bytearray = field(default_factory=bytearray)
    note: Note | None = None
    boot: str = "1"
    durable: int = 0


@dataclass(frozen=True)
class Answer:
    """How a server treats one request: which kind of answer, and how much of its body comes."""

    kind: str
    comes: int
    etag: str
    crash: str
    """What happens then: `none`, `process`, `machine` (what was not made sure of is zeros)."""


ANSWERS = st.builds(
    Answer,
    kind=st.sampled_from(["right", "right", "right", "200", "416", "206-elsewhere", "short-total", "500", "no-length"]),
    comes=st.integers(0, len(DATA)),
    etag=st.sampled_from(['"a"', '"a"', '"b"']),
    crash=st.sampled_from(["none", "process", "machine"]),
)


def reply(answer: Answer, offset: int) -> tuple[int, dict[str, str], bytes]:
    size = len(DATA)
    match answer.kind:
        case "right" if offset:
            head = {"content-range": f"bytes {offset}-{size - 1}/{size}", "etag": answer.etag}
            return 206, head, DATA[offset:]
        case "right" | "200":
            return 200, {"content-length": str(size), "etag": answer.etag}, DATA
        case "no-length":
            return 200, {"etag": answer.etag}, DATA
        case "416":
            return 416, {"content-range": f"bytes */{size}"}, b""
        case "206-elsewhere":
            return (
                206,
                {"content-range": f"bytes {offset + 1}-{size - 1}/{size}", "etag": answer.etag},
                DATA[offset + 1 :],
            )
        case "short-total":
            return 200, {"content-length": str(size - 1), "etag": answer.etag}, DATA[:-1]
        case _:
            return 500, {}, b"no"


@given(st.lists(ANSWERS, max_size=12))
@settings(max_examples=300, deadline=None)
def test_what_is_on_disk_is_always_a_beginning_of_the_file(answers: list[Answer]) -> None:
    """Whatever is answered, and whenever process or machine go down: nothing but a prefix is ever trusted,
    and one good answer then makes the file whole."""
    disk = Disk()
    for answer in [*answers, Answer("right", len(DATA), '"a"', "none"), Answer("right", len(DATA), '"b"', "none"),
                   Answer("right", len(DATA), '"b"', "none")]:  # fmt: skip
        kept = trusted(disk.note, len(disk.content), TARGET, disk.boot)
        del disk.content[kept:]
        assert bytes(disk.content) == DATA[:kept]
        if kept == len(DATA):
            break
        etag = disk.note.etag if disk.note is not None and kept else None
        status, headers, body = reply(answer, kept)
        verdict = judge(status, headers, kept, etag, TARGET)
        if verdict.action == "anew":
            disk.content.clear()
            disk.durable = 0
            etag = None
        elif verdict.action == "go":
            del disk.content[verdict.start :]
            disk.durable = min(disk.durable, verdict.start)
            disk.content += body[: answer.comes]
            etag = verdict.etag
            disk.durable = max(disk.durable, len(disk.content) // 2)
        digest = digest_name(TARGET)
        disk.note = Note("org/m", "c" * 40, "m.gguf", len(DATA), digest, etag, disk.durable, disk.boot)
        if answer.crash == "machine":
            disk.content[disk.durable :] = bytes(len(disk.content) - disk.durable)
            disk.boot += "1"
    assert bytes(disk.content) == DATA


@pytest.mark.parametrize(
    ("status", "headers", "offset", "action", "start"),
    [
        (200, {"content-length": "200"}, 0, "go", 0),
        (200, {"content-length": "200"}, 50, "go", 0),
        (200, {"content-length": "199"}, 0, "wrong", 0),
        (206, {"content-range": "bytes 50-199/200"}, 50, "go", 50),
        (206, {"content-range": "bytes 50-199/200", "etag": '"other"'}, 50, "anew", 0),
        (206, {"content-range": "bytes 49-199/200"}, 50, "anew", 0),
        (206, {"content-range": "bytes 50-199/*"}, 50, "anew", 0),
        (206, {}, 0, "wrong", 0),
        (206, {"content-range": f"bytes 50-{'9' * 5000}/{'9' * 5000}"}, 50, "anew", 0),
        (200, {"content-length": "9" * 5000}, 0, "go", 0),
        (206, {"content-range": "bytes 50-250/251"}, 50, "wrong", 0),
        (416, {}, 50, "anew", 0),
        (416, {}, 0, "wrong", 0),
        (200, {"content-encoding": "gzip"}, 0, "wrong", 0),
        (204, {}, 0, "wrong", 0),
    ],
)
def test_each_answer(status: int, headers: dict[str, str], offset: int, action: str, start: int) -> None:
    verdict = judge(status, headers, offset, '"known"', TARGET)
    assert (verdict.action, verdict.start) == (action, start)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, 120),
        ({"boot": "old"}, 80),
        ({"boot": "old", "durable": 500}, 120),
        ({"boot": "old", "durable": -1}, 0),
        ({"commit": "d" * 40}, 0),
        ({"size": 1}, 0),
        ({"digest": "git:x"}, 0),
        ({"path": "other.gguf"}, 0),
        ({"repository": "org/other"}, 0),
    ],
)
def test_a_note_is_believed_about_its_own_file_only(change: dict[str, object], kept: int) -> None:
    base: dict[str, object] = {
        "repository": "org/m", "commit": "c" * 40, "path": "m.gguf", "size": 200,
        "digest": digest_name(TARGET), "etag": None, "durable": 80, "boot": "now",
    }  # fmt: skip
    assert trusted(Note(**{**base, **change}), 120, TARGET, "now") == kept  # type: ignore[arg-type]
    assert trusted(None, 120, TARGET, "now") == 0
    assert trusted(Note(**base), 201, TARGET, "now") == 0  # type: ignore[arg-type]
