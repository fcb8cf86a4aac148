"""SGLang's own argument parser, out of its wheel: `python sglang_parser.py WHEEL < argvs.json > verdicts.json`.

A program of its own, run by an interpreter that has msgspec and nothing else of what SGLang imports: what is
missing (torch, triton, transformers, ...) is stubbed, for the parser is plain argparse over msgspec records.
Standard input is a JSON list of argument lists; the answer is {"version": ..., "verdicts": [...]}, where a
verdict is null for an accepted list and argparse's last words for a refused one. With `resolve` after the wheel
0.5.23's own handler of the speculation makes of each list what it would run with, as on a CUDA GPU, and a verdict
is that, or {"error": ...}.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

STUBBED = (
    "sglang.kernels",
    "sglang.srt.configs",
    "sglang.srt.constrained",
    "sglang.srt.distributed",
    "sglang.srt.layers",
    "sglang.srt.managers",
)
"""SGLang's own packages that are kernels, communicators and processes, not arguments."""
ABSENT = frozenset({"torch_npu", "torch_musa", "mlx", "habana_frameworks", "npu", "hpu", "musa", "mps"})
"""Modules and attributes of torch that would mean other hardware: looked for, and not there."""


RESOLVED = (
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_draft_attention_backend",
    "max_running_requests",
)


class _Anything(type):
    """The class of stubs: any attribute is another stub, any call or subscript gives one, `|` works in types."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> Any:
        return super().__new__(cls, name, bases, namespace)  # a subclass of a TypedDict is made with more words

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(f"{cls.__name__}.{name}")

    def __getitem__(cls, _: object) -> Any:
        return cls

    def __or__(cls, _: object) -> Any:
        return cls

    __ror__ = __or__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__dict__.get("_stub"):
            if len(args) == 1 and not kwargs and callable(args[0]):
                return args[0]  # as a decorator
            return _stub(f"{cls.__name__}()")
        return super().__call__(*args, **kwargs)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __bool__(cls) -> bool:
        return False

    def __len__(cls) -> int:
        return 0

    def __lt__(cls, _: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *_: object) -> None:
        return None


def _stub(name: str) -> Any:
    return _Anything(name, (), {"_stub": True})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__", "__spec__") or name in ABSENT:
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in sys.modules:
            return sys.modules[f"{self.__name__}.{name}"]
        if name == "__version__":
            return "2.13.0"
        value = _stub(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Whatever nobody else can import, and `STUBBED`, but not the rest of SGLang's own."""

    def __init__(self, *, first: bool) -> None:
        self.first = first

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        stubbed = any(name == one or name.startswith(f"{one}.") for one in STUBBED)
        if name in ABSENT or (name.partition(".")[0] == "sglang" and not stubbed) or (self.first and not stubbed):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    argvs = json.load(sys.stdin)
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, _Stubs(first=True))
    sys.meta_path.append(_Stubs(first=False))
    package = types.ModuleType("sglang")  # not its own __init__, which patches transformers
    package.__path__ = [f"{sys.argv[1]}/sglang"]
    sys.modules["sglang"] = package
    with contextlib.redirect_stdout(sys.stderr):
        import argparse  # noqa: PLC0415

        from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]  # noqa: PLC0415
        from sglang.version import __version__ as version  # type: ignore[import-not-found]  # noqa: PLC0415

        parser = argparse.ArgumentParser(prog="sglang")
        ServerArgs.add_cli_args(parser)
        verdicts: list[Any] = []
        for argv in argvs:
            if "resolve" in sys.argv[2:]:
                verdicts.append(_resolved(ServerArgs.from_cli_args(parser.parse_args(argv))))
            else:
                verdicts.append(_verdict(parser, argv))
    json.dump({"version": version, "verdicts": verdicts}, sys.stdout)


def _verdict(parser: Any, argv: list[str]) -> str | None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(argv)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    return None


def _resolved(args: Any) -> dict[str, Any]:
    from sglang.srt.arg_groups import speculative_hook as hook  # type: ignore[import-not-found]  # noqa: PLC0415
    from sglang.srt.arg_groups.overrides import (  # type: ignore[import-not-found]  # noqa: PLC0415
        resolution_result,
    )

    handlers = {"DFLASH": hook._handle_dflash, "DSPARK": hook._handle_dspark, "NGRAM": hook._handle_ngram}
    args._input_frozen = True  # as while SGLang resolves
    try:
        handlers.get(args.speculative_algorithm, hook._handle_eagle_family)(args)
    except ValueError as error:
        return {"error": str(error)}
    return {name: resolution_result(args, name) for name in RESOLVED}


if __name__ == "__main__":
    main()
