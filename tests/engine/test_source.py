"""Building from source, with a tree that has the shape of llama.cpp's and one file in it."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from containers.embedded import image, source
from containers.embedded.errors import ImageBuildFailed

CMAKE = """cmake_minimum_required(VERSION 3.14)
project(little CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_executable(llama-server tools/server/server.cpp)
target_compile_definitions(llama-server PRIVATE NUMBER=${LLAMA_BUILD_NUMBER})
"""
CODE = '#include <cstdio>\nint main() { std::printf("build %d\\n", NUMBER); }\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "llama.cpp"
    (folder / "tools" / "server").mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "tools" / "server" / "server.cpp").write_text(CODE)
    return folder


def test_a_tree_is_built_once(tree: Path, tmp_path: Path) -> None:
    cache, said = tmp_path / "cache", list[str]()
    binary = source.build_binary(tree, cache, build_number=11434, niceness=0, progress=said.append)
    assert subprocess.run([binary], capture_output=True, text=True, check=True, timeout=10).stdout == "build 11434\n"
    assert any("Linking" in line for line in said)
    assert [path.name for path in cache.iterdir()] == [binary.name]  # the build's own files are gone
    said.clear()
    assert source.build_binary(tree, cache, build_number=11434, progress=said.append) == binary
    assert said == []

    built = image.write(source.binary_recipe(binary), tmp_path / "image.tar")
    with tarfile.open(built.archive) as archive:
        layer = next(name for name in archive.getnames() if name.endswith(".tar"))
        file = archive.extractfile(layer)
        assert file is not None
        with tarfile.open(fileobj=file) as inner:
            names = inner.getnames()
            assert inner.getmember("app/llama-server").mode == 0o755
    assert any(name.endswith("libc.so.6") for name in names)
    assert any("ld-linux" in name for name in names)


def test_a_changed_tree_or_number_is_another(tree: Path) -> None:
    before = source.tree_digest(tree)
    (tree / ".git").mkdir()
    (tree / ".git" / "HEAD").write_text("x")
    assert source.tree_digest(tree) == before
    assert source.tree_digest(tree, [*source.FLAGS, "-DLLAMA_BUILD_NUMBER=2"]) != before
    (tree / "tools" / "server" / "server.cpp").write_text(CODE + "\n")
    assert source.tree_digest(tree) != before


def test_a_failed_build_says_why(tree: Path, tmp_path: Path) -> None:
    (tree / "tools" / "server" / "server.cpp").write_text("int main() { return nothing; }\n")
    with pytest.raises(ImageBuildFailed, match=r"nothing.* was not declared"):
        source.build_binary(tree, tmp_path / "cache", build_number=1, niceness=0)
    assert not list((tmp_path / "cache").glob("llama-server-*"))


def test_what_is_no_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildFailed, match="is not a source tree"):
        source.build_binary(tmp_path, tmp_path / "cache")


def test_a_build_that_takes_too_long_is_ended(tree: Path, tmp_path: Path) -> None:
    (tree / "CMakeLists.txt").write_text("execute_process(COMMAND sleep 60)\nproject(late CXX)\n")
    with pytest.raises(ImageBuildFailed, match="cmake did not end within 0 s"):
        source.build_binary(tree, tmp_path / "cache", niceness=0, limit=0.3)


def test_missing_tools_are_named(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageBuildFailed, match="needs cmake, ninja, cc"):
        source.build_binary(tree, tmp_path / "cache")
