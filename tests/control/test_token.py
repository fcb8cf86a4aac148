"""The token file: private, whole, and the same for all who start at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from api.control.token import digest, load_or_create
from orchestrator.errors import Conflict, OutriderError, Refused
from orchestrator.paths import Paths


def test_made_once_and_kept(paths: Paths) -> None:
    token = load_or_create(paths)
    assert len(token) >= 43  # 256 bits in base64
    assert paths.token_file.stat().st_mode & 0o777 == 0o600
    assert load_or_create(paths) == token
    assert [p.name for p in paths.state_dir.iterdir()] == ["token"]
    assert len(digest(token)) == 32


def test_the_umask_does_not_matter(paths: Paths) -> None:
    before = os.umask(0)
    try:
        load_or_create(paths)
    finally:
        os.umask(before)
    assert paths.token_file.stat().st_mode & 0o777 == 0o600


def test_two_folders_have_two_tokens(paths: Paths, tmp_path: Path) -> None:
    assert load_or_create(paths) != load_or_create(Paths(tmp_path, tmp_path / "made", tmp_path))


def test_all_who_start_at_once_get_the_same(paths: Paths) -> None:
    found: list[str] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait(5)
        found.append(load_or_create(paths))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [p.name for p in paths.state_dir.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_a_file_that_others_may_read_is_refused(paths: Paths, mode: int) -> None:
    token = load_or_create(paths)
    paths.token_file.chmod(mode)
    with pytest.raises(Refused, match=r"can be read or written by others \(mode 0") as caught:
        load_or_create(paths)
    assert caught.value.evidence["mode"] == f"{mode:04o}"
    assert "chmod 600" in (caught.value.hint or "")
    assert token not in str(caught.value)


def broken(what: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        match what:
            case "link":
                path.with_name("other").write_text("x" * 43)
                path.symlink_to(path.with_name("other"))
            case "folder":
                path.mkdir(mode=0o700)
            case "fifo":
                os.mkfifo(path, 0o600)
            case text:
                path.touch(0o600)
                path.write_text(text)

    return make


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("link", Conflict, "symbolic link"),
        ("folder", Conflict, "not a regular file"),
        ("fifo", Conflict, "not a regular file"),
        ("", Refused, "holds no token"),
        ("short", Refused, "holds no token"),
        ("two words, and rather long ones at that, too long", Refused, "holds no token"),
    ],
)
def test_what_is_no_token_file(paths: Paths, what: str, error: type[OutriderError], says: str) -> None:
    broken(what)(paths.token_file)
    with pytest.raises(error, match=says) as caught:
        load_or_create(paths)
    assert caught.value.hint is not None


def test_somebody_elses_file_is_refused(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    load_or_create(paths)
    if os.geteuid() == 0:
        os.chown(paths.token_file, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(Refused, match="belongs to uid"):
        load_or_create(paths)


def test_a_token_of_ones_own(paths: Paths) -> None:
    paths.token_file.touch(0o600)
    paths.token_file.write_text("my-own-token-of-sufficient-length-0123\n")
    assert load_or_create(paths) == "my-own-token-of-sufficient-length-0123"
