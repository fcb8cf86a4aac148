"""What all commands share: the folders, and the options that many of them take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from orchestrator.errors import OutriderError, UsageError
from orchestrator.paths import Paths, find
from orchestrator.timing import Timing

LOAD = Timing().load
"""Seconds until a model must be ready, unless --timeout says otherwise."""
COMPLETION = 2.0
"""Seconds that a shell waits for the names of models."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")]


def models_named(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completion: the models of the daemon and their states; without a daemon, those of the configuration."""
    from api.cli.client import Client
    from orchestrator.config import load

    asked = ctx.find_root().params
    try:
        paths = resolve(asked.get("config"), asked.get("state_dir")).paths
        try:
            with Client(paths) as client:
                views = client.get("/deployments", timeout=COMPLETION)
            found = {view["deployment"]: _state(view) for view in views}
        except OutriderError:
            found = {entry.name: "" for entry in load(paths).models}
    except OutriderError:
        return []  # a shell that completes is told no errors
    return [(name, state) for name, state in sorted(found.items()) if name.startswith(incomplete)]


def _state(view: Mapping[str, Any]) -> str:
    return f"{view['state']}, on demand" if view["desired"] == "on_demand" else str(view["state"])


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model's public name or alias.", autocompletion=models_named, show_default=False
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait at most.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until it is done, or failed.")]


@dataclass(frozen=True, slots=True)
class Common:
    """The global options, resolved. `arguments` repeats them for a child process."""

    paths: Paths
    arguments: tuple[str, ...]


def common(ctx: typer.Context) -> Common:
    """The global options of this call."""
    value = ctx.find_object(Common)
    if value is None:
        raise UsageError("the command was called without its options", hint="call `outrider`")
    return value


def resolve(config: Path | None, state_dir: Path | None) -> Common:
    """Find the folders; creates nothing. Raises `UsageError` for a `--config` that cannot be meant."""
    if config is not None and config.suffix == ".toml":
        if config.name != "outrider.toml":
            raise UsageError(
                f"--config {config}: the file's name must be outrider.toml",
                hint="name the folder that holds outrider.toml and models.d/",
            )
        if not config.exists():
            raise UsageError(f"--config {config}: there is no such file", hint="name an existing file, or its folder")
    elif config is not None and config.exists() and not config.is_dir():
        raise UsageError(f"--config {config}: is no folder", hint="name outrider.toml or the folder that holds it")
    paths = real_run_folder(find(config, state_dir))
    arguments: list[str] = []
    if config is not None:
        arguments += ["--config", str(paths.config_dir)]
    if state_dir is not None:
        arguments += ["--state-dir", str(paths.state_dir)]
    return Common(paths, tuple(arguments))


def real_run_folder(paths: Paths) -> Paths:
    """Where `DIR/run` links to a short folder, the sockets are named through that folder:
    through the link their addresses would be too long for the kernel."""
    if paths.run_dir.is_symlink():
        return replace(paths, run_dir=paths.run_dir.readlink())
    return paths


def at(*parts: str) -> str:
    """A path of the API from its parts; a slash inside a part (an alias may have one) is escaped."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
