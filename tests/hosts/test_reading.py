"""The bounded readers: no file may crash or stop them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.reading import children, key_values, known, number, read_bytes, read_number, read_text, words


def test_reads_a_number_as_the_kernel_writes_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("120259084288\n")
    (tmp_path / "b").write_text("0x1002\n")
    assert read_number(tmp_path / "a") == 120259084288
    assert read_number(tmp_path / "b") == 0x1002


def test_a_fifo_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_text(tmp_path / "fifo") is None


def test_a_fifo_with_a_writer_is_refused_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    both = os.open(tmp_path / "fifo", os.O_RDWR)
    try:
        os.write(both, b"5\n")
        assert read_number(tmp_path / "fifo") is None
    finally:
        os.close(both)


@pytest.mark.parametrize("make", ["missing", "folder", "dangling", "loop", "device"])
def test_what_is_no_file_reads_as_nothing(tmp_path: Path, make: str) -> None:
    path = tmp_path / "x"
    if make == "folder":
        path.mkdir()
    elif make == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif make == "loop":
        path.symlink_to(path)
    elif make == "device":
        path.symlink_to("/dev/zero")
    assert read_bytes(path, 100) is None


def test_a_name_with_a_nul_reads_as_nothing() -> None:
    assert read_text(Path("/proc/\0")) is None


def test_an_endless_file_is_cut(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 200_000)
    assert read_bytes(tmp_path / "long", 70_000) == b"x" * 70_000


def test_bytes_that_are_no_text_are_survived(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00 7\n")
    assert read_number(tmp_path / "binary") is None


def test_children_are_in_natural_order_and_may_vanish(tmp_path: Path) -> None:
    for name in ("10", "2", "0", "card1", "card10", "card2"):
        (tmp_path / name).write_text("1")
    listed = children(tmp_path)
    assert next(listed).name == "0"
    (tmp_path / "2").unlink()
    rest = {path.name: read_number(path) for path in listed}
    assert list(rest) == ["2", "10", "card1", "card2", "card10"]
    assert rest["2"] is None
    assert rest["10"] == 1
    assert list(children(tmp_path / "nowhere")) == []


def test_key_values_takes_the_first_and_skips_lines_without_a_value() -> None:
    assert key_values("a 1\n\nlonely\na 2\nb 3 4\n") == {"a": "1", "b": "3 4"}
    assert key_values("A=1\nB = x=y\n", "=") == {"A": "1", "B": "x=y"}
    assert key_values(None) == {}


SENTINELS = (0xFFFF, 0xFFFFFFFF, 2**64 - 1)


@pytest.mark.parametrize("value", [*SENTINELS, *map(str, SENTINELS), -1, "N/A", "", None, True, 1.5, [], "0xffff"])
def test_unknown_values_are_none(value: object) -> None:
    assert known(value) is None


@given(st.integers(min_value=0, max_value=2**64))
def test_every_other_number_is_kept(value: int) -> None:
    expected = None if value in SENTINELS else value
    assert known(value) == expected
    assert known(str(value)) == expected


@given(st.one_of(st.text(), st.binary(), st.floats(), st.none(), st.lists(st.integers())))
def test_known_answers_anything_with_a_number_or_none(value: object) -> None:
    found = known(value)
    assert found is None or (isinstance(found, int) and found >= 0 and found not in SENTINELS)


@given(st.text())
def test_number_never_raises(text: str) -> None:
    assert number(text) is None or isinstance(number(text), int)


def test_words_drops_what_says_nothing() -> None:
    assert words("N/A") is None
    assert words("  unknown ") is None
    assert words(7) is None
    assert words(" Radeon ") == "Radeon"
