"""Commands that mend, in the words of the distribution they are typed on. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from orchestrator.doctor.machine import System

FAMILIES = ("debian", "fedora", "arch", "suse")
_ALIASES = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse", "sles": "suse"}
_INSTALL = {
    "debian": "apt-get install {}",
    "fedora": "dnf install {}",
    "arch": "pacman -S {}",
    "suse": "zypper install {}",
}
_UPGRADE = {
    "debian": "apt-get update && apt-get install --only-upgrade {}",
    "fedora": "dnf upgrade {}",
    "arch": "pacman -Syu {}",
    "suse": "zypper update {}",
}


def family(system: System) -> str:
    """`debian`, `fedora`, `arch`, `suse`; an unknown one is treated as Debian."""
    for name in system.ids:
        found = _ALIASES.get(name, name)
        if found in FAMILIES:
            return found
    return "debian"


def install(system: System, package: str, **names: str) -> str:
    """The command that installs a package; `names` say what other families call it."""
    return _packages(_INSTALL, system, package, names)


def upgrade(system: System, package: str, **names: str) -> str:
    """The command that brings the newest version of a package."""
    return _packages(_UPGRADE, system, package, names)


def _packages(commands: Mapping[str, str], system: System, package: str, names: Mapping[str, str]) -> str:
    which = family(system)
    name = names.get(which, package)
    if system.ostree:
        return f"rpm-ostree install {name}" if commands is _INSTALL else "rpm-ostree upgrade"
    return commands[which].format(name)


def kernel_argument(system: System, add: str | None = None, remove: str | None = None) -> tuple[str, ...]:
    """Commands that change the kernel's command line for the next boot; `reboot` is the last."""
    if system.ostree:
        words = [
            *([f"--append-if-missing={add}"] if add else []),
            *([f"--delete-if-present={remove}"] if remove else []),
        ]
        return (f"rpm-ostree kargs {' '.join(words)}", "systemctl reboot")
    if family(system) in {"fedora", "suse"}:
        words = [*([f"--args={add}"] if add else []), *([f"--remove-args={remove}"] if remove else [])]
        return (f"grubby --update-kernel=ALL {' '.join(words)}", "systemctl reboot")
    edits = []
    if system.kernel_cmdline:
        if remove:
            edits.append(rf"sed -i 's/\b{remove}\(=[^ ]*\)\?//' /etc/kernel/cmdline")
        if add:
            edits.append(f"sed -i '1s/$/ {add}/' /etc/kernel/cmdline")
        # kernel-install: what systemd-boot's entries are written by
        return (*edits, 'kernel-install add "$(uname -r)" "/boot/vmlinuz-$(uname -r)"', "systemctl reboot")
    if remove:
        edits.append(rf"sed -i 's/\b{remove}\(=[^ \"]*\)\?//' /etc/default/grub")
    if add:
        edits.append(rf"""sed -i 's/^GRUB_CMDLINE_LINUX="/&{add} /' /etc/default/grub""")
    rebuild = "grub-mkconfig -o /boot/grub/grub.cfg" if family(system) == "arch" else "update-grub"
    return (*edits, rebuild, "systemctl reboot")


def initramfs(system: System) -> str:
    """The command that rebuilds the initial file system, where early modules take firmware and options from."""
    if system.ostree:
        return "rpm-ostree initramfs --enable"
    return {
        "debian": "update-initramfs -u -k all",
        "fedora": "dracut --force --regenerate-all",
        "arch": "mkinitcpio -P",
        "suse": "dracut --force --regenerate-all",
    }[family(system)]


def sysctl(name: str, value: int) -> tuple[str, ...]:
    """Commands that set a kernel switch now and for the next boots."""
    return (
        f"sysctl -w {name}={value}",
        f"echo '{name} = {value}' >> /etc/sysctl.d/90-outrider.conf",
    )


def drop_in(unit: str, section: str, *lines: str, name: str) -> str:
    """The command that lays a drop-in beside a unit's file; its name comes after what others are called, for the last
    one counts."""
    path = f"/etc/systemd/system/{unit}.d/zz-outrider-{name}.conf"
    folder = path.rpartition("/")[0]
    return f"mkdir -p {folder} && {file(path, f'[{section}]', *lines)} && systemctl daemon-reload"


def file(path: str, *lines: str) -> str:
    """The command that writes a file of these lines, whatever is in them."""
    words = " ".join(shlex.quote(line) for line in lines)
    return f"printf '%s\\n' {words} > {path}"
