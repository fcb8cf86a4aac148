"""From the folders and the configuration of an Outrider to what the doctor is to look at."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from hosts.facts import HostFacts
from orchestrator.config import Config, ConfigProblems, load, split_listen
from orchestrator.doctor.collect import DEAR, Question
from orchestrator.doctor.machine import Wanted
from orchestrator.doctor.sources.look import Look
from orchestrator.paths import Paths


def by_a_person(paths: Paths) -> Question:
    """Everything, for whoever called `outrider doctor`. A configuration that is broken is no reason to say nothing."""
    try:
        config, unseen = load(paths), {}
    except ConfigProblems as error:
        config, unseen = Config(), {"firewall": f"the configuration is not readable: {error.detail}"}
    return _question(paths, config, Look(), unseen=unseen)


def by_the_daemon(paths: Paths, config: Config, facts: HostFacts | None = None) -> Question:
    """What is cheap and does nothing on the machine; `facts` where the daemon has them fresh."""
    return _question(paths, config, Look(), facts=facts, skip=DEAR)


def _question(
    paths: Paths,
    config: Config,
    look: Look,
    *,
    facts: HostFacts | None = None,
    skip: Collection[str] = (),
    unseen: dict[str, str] | None = None,
) -> Question:
    temporary = look.environ.get("TMPDIR")
    return Question(
        look=look,
        wanted=wanted(config),
        places={
            "state": str(paths.state_dir),
            "store": str(paths.store),
            "temporary": temporary or "/var/tmp",  # noqa: S108 - where Podman unpacks
        },
        sockets=_sockets(config, look),
        facts=facts,
        skip=skip,
        unseen=unseen or {},
    )


def wanted(config: Config) -> Wanted:
    """What the rules need of the configuration."""
    listeners = {"the gateway": config.gateway.listen, "the gateway's second listener": config.gateway.ops_listen}
    exposed = [(what, split_listen(address)) for what, address in listeners.items()]
    return Wanted(
        exposed=tuple((what, port) for what, (host, port) in exposed if not _loopback(host)),
        registries=tuple(mirror.partition("/")[0] for mirror in config.images.mirrors.values()),
        low_water=config.store.low_water,
    )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _sockets(config: Config, look: Look) -> tuple[str, ...]:
    if config.podman.socket is not None:
        return (config.podman.socket,)
    if look.who.root:
        return ("/run/podman/podman.sock",)
    runtime = look.environ.get("XDG_RUNTIME_DIR")
    return (f"{runtime}/podman/podman.sock",) if runtime else ()
