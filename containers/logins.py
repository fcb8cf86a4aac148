"""Logins of registries, as `podman login` and `docker login` write them.

A secret leaves this module in one header only: to the registry that it is for, or over Podman's
unix socket. It is in no error, log or argument.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers.errors import AuthFailed
from containers.references import DOCKER, Reference

LARGEST = 1 << 20
_DOCKER_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")


@dataclass(frozen=True, slots=True)
class Login:
    """Who to be at a registry. The secret is in no representation."""

    user: str
    secret: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an `Authorization` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def usual_files(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Where logins usually are, the first that exists counts: REGISTRY_AUTH_FILE alone if it is set."""
    env = os.environ if environ is None else environ
    if env.get("REGISTRY_AUTH_FILE"):
        return (Path(env["REGISTRY_AUTH_FILE"]),)
    runtime = env.get("XDG_RUNTIME_DIR") or (f"/run/containers/{os.getuid()}" if os.getuid() == 0 else None)
    home = Path(env.get("HOME") or "/root")
    places = [] if runtime is None else [Path(runtime) / "containers/auth.json"]
    if os.getuid() == 0:
        places.insert(0, Path("/run/containers/0/auth.json"))
    return (*places, home / ".config/containers/auth.json", home / ".docker/config.json")


def find(reference: Reference, file: str | None = None, environ: Mapping[str, str] | None = None) -> Login | None:
    """The login for this image's registry, the most special first; None where there is none. Blocking.

    `file` is the configured one: it must be there and readable. Raises `AuthFailed` for a file that
    is not what it should be, or a login with a line break in it.
    """
    if file is not None:
        return _of(_read(Path(file), must=True), reference, file)
    for place in usual_files(environ):
        logins = _read(place, must=False)
        if logins:
            return _of(logins, reference, str(place))
    return None


def header(logins: Mapping[str, Login]) -> dict[str, str]:
    """Podman's header with logins by registry; none for no login.

    Podman keeps a private file of them in its temporary folder until the pull ends. The other header it knows
    has one login and no name; 4.3.1 does not heed it, and it would be shown to every mirror.
    """
    if not logins:
        return {}
    data = {where: {"username": login.user, "password": login.secret} for where, login in logins.items()}
    return {"X-Registry-Config": base64.urlsafe_b64encode(json.dumps(data).encode()).decode()}


def _read(path: Path, *, must: bool) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(LARGEST))
        auths = data.get("auths", {})
        if not isinstance(auths, dict):
            raise TypeError("`auths` is no table")
    except FileNotFoundError as error:
        if not must:
            return {}
        raise AuthFailed(
            f"the file of registry logins {path} is not there",
            hint=f"`podman login --authfile {path} REGISTRY` makes it; or remove [images] auth_file",
            evidence={"file": str(path)},
        ) from error
    except OSError as error:
        if not must:
            return {}
        raise AuthFailed(
            f"the file of registry logins {path} cannot be read: {error.strerror}",
            hint=f"`ls -l {path}`: the daemon's user (uid {os.getuid()}) has to be able to read it",
            evidence={"file": str(path)},
        ) from error
    except (ValueError, TypeError, AttributeError):
        # the parser's own words may hold a piece of the file
        raise AuthFailed(
            f"the file of registry logins {path} is not in the form that `podman login` writes",
            hint=f"remove it and log in again: `podman login --authfile {path} REGISTRY`",
            evidence={"file": str(path)},
        ) from None
    return auths


def _of(auths: Mapping[str, Any], reference: Reference, file: str) -> Login | None:
    for key in _keys(reference):
        entry = auths.get(key)
        if isinstance(entry, dict) and (entry.get("auth") or entry.get("username") or entry.get("password")):
            return _login(entry, reference.registry, file)
    return None


def _keys(reference: Reference) -> Sequence[str]:
    parts = reference.name.split("/")
    keys = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return (*keys, *_DOCKER_KEYS) if reference.registry == DOCKER else keys


def _login(entry: Mapping[str, Any], registry: str, file: str) -> Login:
    user, secret = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            user, _, secret = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise AuthFailed(
                f"the login for {registry} in {file} is garbled",
                hint=f"`podman login --authfile {file} {registry}` writes it anew",
                evidence={"file": file, "registry": registry},
            ) from None
    if any(ord(c) < 32 for c in user + secret):
        raise AuthFailed(
            f"the login for {registry} in {file} has a line break or another control character in it",
            hint=f"it was probably pasted with its newline: `printf %s TOKEN | podman login --authfile {file}"
            f" -u USER --password-stdin {registry}`",
            evidence={"file": file, "registry": registry},
        )
    return Login(user, secret)
