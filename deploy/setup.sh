#!/usr/bin/env bash
# Makes this checkout ready: system packages, a virtual environment, the locked dependencies.
#
#   deploy/setup.sh run   what `outrider up` needs
#   deploy/setup.sh dev   what the tests need as well
#
# Root is used for apt and nothing else, and only where something is missing. Who is not root
# is told what to type. A set-up that is done is recognised by a stamp and takes no time.
set -euo pipefail

kind=${1:?run or dev}
python=${PYTHON:-python3}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$PWD/.venv

say() { printf '%s\n' "$*" >&2; }

# --- system packages --------------------------------------------------------

missing=()
need() { # need COMMAND PACKAGE: the package, where the command is not there
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing+=("$2")
}

need "$python" python3
need /usr/bin/python3 python3 # goes into the engine's image, with the libraries below
need podman podman
need runc runc
# Podman starts nothing without the network program that its storage was made with, not even
# containers without a network
[ -x /usr/lib/podman/netavark ] || missing+=(netavark)
ldconfig=$(command -v ldconfig || echo /sbin/ldconfig)
"$ldconfig" -p | grep -q 'libgomp\.so\.1 ' || missing+=(libgomp1)
if [ "$(id -u)" != 0 ]; then
    need newuidmap uidmap
fi
if [ "$kind" = dev ]; then
    need gcc gcc
    need c++ g++
    need cmake cmake
    need ninja ninja-build
    need git git
    need docker-registry docker-registry # pulls are tested against it, on loopback
    need systemd-analyze systemd         # and units by it; it need not be what runs the machine
    # a container with a port: Debian 12's Podman sets the port up by iptables, Debian 13's by nft
    need iptables iptables
    need nft nftables
    [ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
fi
if command -v "$python" >/dev/null 2>&1; then
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        say "$python is $("$python" --version), and 3.11 is needed: set PYTHON=/path/to/python3.11"
        exit 1
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
else
    missing+=(python3-venv)
fi

if [ ${#missing[@]} -gt 0 ]; then
    install=(apt-get install -y --no-install-recommends "${missing[@]}")
    if ! command -v apt-get >/dev/null 2>&1; then
        say "missing: ${missing[*]} (Debian's names; there is no apt-get here to install them with)"
        exit 1
    elif [ "$(id -u)" = 0 ]; then
        say "installing with apt: ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        "${install[@]}" >&2 || { apt-get update >&2 && "${install[@]}" >&2; }
    elif command -v sudo >/dev/null 2>&1; then
        say "missing: ${missing[*]}; type:"
        say "  sudo apt-get update && sudo ${install[*]}"
        exit 1
    else
        say "missing: ${missing[*]}; as root, type:"
        say "  apt-get update && ${install[*]}"
        exit 1
    fi
fi

# --- the virtual environment ------------------------------------------------

lock=requirements.lock
[ "$kind" = dev ] && lock=requirements-dev.lock
state() { # what the environment depends on; the development one serves both kinds
    printf '%s %s\n' "$1" "$({
        "$python" --version
        printf '%s\n' "$venv"
        cat requirements.lock requirements-dev.lock pyproject.toml
    } | sha256sum | cut -d' ' -f1)"
}
stamp=$venv/.outrider-stamp
if [ -x "$venv/bin/outrider" ]; then
    have=$(cat "$stamp" 2>/dev/null || true)
    if [ "$have" = "$(state dev)" ] || [ "$have" = "$(state "$kind")" ]; then
        exit 0
    fi
fi

say "setting up $venv ($lock)"
rm -f "$stamp"
"$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input)
"${pip[@]}" install --require-hashes -r "$lock"
"${pip[@]}" install --no-index --no-deps --no-build-isolation --editable .
state "$kind" >"$stamp"
