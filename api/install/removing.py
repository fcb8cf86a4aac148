"""`outrider uninstall`: what was made is taken away; what people put there only with --purge."""

from __future__ import annotations

import asyncio
import shlex

from api.cli.downcommand import remove_containers
from api.install import layout, preflight, system
from api.install.doing import Doing
from api.install.installing import folders_made
from api.install.manifest import FILE, GROUP, LINK, TREE, UNIT, USER
from containers import service
from containers.embedded.image import LABEL_IMAGE
from containers.errors import ContainerError
from containers.labels import OWNER, owned_by
from containers.podman import Podman
from orchestrator.errors import NotFound

PODMAN = 20.0
"""Seconds for one thing asked of Podman."""
KEPT = (layout.CONFIG, layout.STATE)


def uninstall(doing: Doing, *, purge: bool) -> list[str]:
    """Take it away; what is left. Raises `OutriderError`; what was done until then is recorded."""
    staged = doing.prefix is not None
    if not staged:
        preflight.root("uninstall")
    if not doing.manifest.there:
        raise NotFound(
            f"nothing is installed here: there is no {layout.MANIFEST}",
            hint="what came by a package goes by the package's own tool",
        )
    left: list[str] = []
    if not staged:
        _stop(doing)
        left += asyncio.run(_containers(doing, purge=purge))
    left += _units(doing)
    _files(doing, () if purge else KEPT)
    if purge:
        return left + _purge(doing)
    for path in folders_made(doing):
        if not path.startswith(KEPT):
            doing.remove_empty(path)
    left += [
        f"{layout.CONFIG}: configuration",
        f"{layout.STATE}: weights, what was wanted, the record of this installation",
        *([] if staged else [f"the user and group {layout.USER}, who own some of it"]),
        _how_to_purge(doing),
    ]
    return left


def _how_to_purge(doing: Doing) -> str:
    """What removes the rest: the command itself is gone once this has run."""
    if doing.dry:
        prefix = "" if doing.prefix is None else f" --prefix {shlex.quote(str(doing.prefix))}"
        return f"`outrider uninstall --purge{prefix}` removes these too"
    folders = " ".join(shlex.quote(str(doing.at(path))) for path in KEPT)
    user = "" if doing.prefix is not None else f" && userdel {layout.USER}"
    return f"`rm -rf --one-file-system {folders}{user}` removes these too"


def _units(doing: Doing) -> list[str]:
    """Remove them; drop-ins that people made beside them are left."""
    left = []
    for path in [p for p in doing.manifest.of(FILE) if p.startswith(layout.UNIT_FOLDER)]:
        doing.remove(path, what="unit")
        if doing.at(f"{path}.d").is_dir():
            left.append(f"{path}.d: drop-ins of your own")
    if doing.prefix is None and not doing.dry and system.systemd_runs():
        system.run("systemctl", "daemon-reload")
    return left


def _files(doing: Doing, kept: tuple[str, ...]) -> None:
    """Remove files, links and the application, but for what is below the `kept` folders."""
    below = tuple(f"{folder}/" for folder in kept)
    for kind, what in ((FILE, "file"), (LINK, "link")):
        for path in doing.manifest.of(kind):
            if not path.startswith(below) and not (kind == FILE and path.startswith(layout.UNIT_FOLDER)):
                doing.remove(path, what=what, kind=kind)
    if doing.prefix is None:
        doing.remove_tree(layout.RUN)
    for path in doing.manifest.of(TREE):
        if doing.remove_tree(path, what="application") and not doing.dry:
            doing.manifest.forget(TREE, path)


def _stop(doing: Doing) -> None:
    """Units first, or systemd would start again what is ended."""
    active = [unit for unit in reversed(layout.UNITS) if system.is_active(unit)]
    if not active:
        preflight.nobody_runs("uninstall")
    for unit in active:
        if not doing.dry:
            system.run("systemctl", "stop", unit)
        doing.say("removed", "running", unit, "stopped")
    for unit in reversed(doing.manifest.of(UNIT)):
        if system.is_enabled(unit):
            if not doing.dry:
                system.run("systemctl", "--quiet", "disable", unit)
            doing.say("removed", "enabled", unit, "as before" if unit == layout.SOCKET else "")
        if not doing.dry:
            doing.manifest.forget(UNIT, unit)


async def _containers(doing: Doing, *, purge: bool) -> list[str]:
    """Engines, which nobody would look after any more; with `purge` their caches and the images built here too."""
    owner = layout.paths().owner
    by_hand = f"containers, if any: podman rm -f $(podman ps -aq --filter label={OWNER}={owner})"
    socket = service.usual_socket()
    if socket is None or not await service.answers(socket, PODMAN):
        return [f"Podman does not answer; {by_hand}"]
    podman = Podman(socket, call_timeout=PODMAN)
    try:
        found = await podman.containers(owned_by(owner))
        if found and not doing.dry:
            await remove_containers(socket, owner)
        for container in found:
            doing.say("removed", "container", container.name)
        if purge:
            for image in await podman.images(label=LABEL_IMAGE):
                if not doing.dry:
                    await podman.remove_image(image.id, force=True)
                doing.say("removed", "image", image.names[0] if image.names else image.id)
            for volume in await podman.volumes("outrider-"):
                if not doing.dry:
                    await podman.remove_volume(volume)
                doing.say("removed", "cache volume", volume)
    except ContainerError as error:
        return [f"{error.detail}; {by_hand}"]
    finally:
        await podman.close()
    return []


def _purge(doing: Doing) -> list[str]:
    """The rest, and at the very end the record itself."""
    left = [f"{path}: something is mounted there" for path in KEPT if not doing.remove_tree(path)]
    if doing.prefix is None and doing.manifest.has(USER, layout.USER):
        if not doing.dry:
            system.remove_user()
        doing.say("removed", "user", layout.USER)
    elif doing.prefix is None and doing.manifest.has(GROUP, layout.USER) and not doing.dry:
        system.remove_user()
    folders = folders_made(doing)
    if not doing.dry and not left:
        doing.manifest.dry = True  # its folder is gone: nothing more is recorded
    for path in folders:
        doing.remove_empty(path)
    return left
