"""Firewalls as the real tools print them, each in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hosts.roots import Roots
from orchestrator.doctor.machine import Who
from orchestrator.doctor.sources.firewall import firewall
from orchestrator.doctor.sources.look import Look, Unseen

FOLDERS = "/usr/sbin:/usr/bin:/sbin:/bin"
PORTS = (22, 8080, 9000, 9100)


@cache
def lacks() -> str | None:
    """Why there is no firewall to try here."""
    if os.geteuid() != 0:
        return "only root has network namespaces"
    if not all(shutil.which(name, path=FOLDERS) for name in ("unshare", "nft", "iptables")):
        return "nft and iptables are not installed"
    words = ["unshare", "-n", "nft", "add", "table", "inet", "x"]
    done = subprocess.run(words, capture_output=True, timeout=20, check=False)
    return None if done.returncode == 0 else "this kernel has no nf_tables"


def closed(folder: Path, rules: str, ports: tuple[int, ...] = PORTS) -> tuple[int, ...]:
    """The ports that are closed with these rules, which are set up anew for each question."""
    if (why := lacks()) is not None:
        pytest.skip(f"{why} (until 2027-12-31)")
    tools = folder / "bin"
    tools.mkdir()
    (folder / "rules").write_text(rules)
    for name in ("nft", "iptables-save"):
        script = f'#!/bin/sh\nexport PATH={FOLDERS}\nexec unshare -n sh -c ". {folder}/rules; exec {name} $*"\n'
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    return firewall(Look(Roots.under(folder), {"PATH": str(tools)}, Who()), ports).closed


def nft(text: str) -> str:
    lines = text.replace("; }", ";\n}\n").replace("} }", "}\n}").replace("} chain", "}\nchain")
    return f"nft -f - <<'E' || exit 9\n{lines}\nE\n"


BASE = "chain input {{ type filter hook input priority 0; policy {}; ct state established accept; iif lo accept; {} }}"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("true\n", ()),
        (nft("table inet f { " + BASE.format("accept", "") + " }"), ()),
        (nft("table inet f { " + BASE.format("drop", "") + " }"), PORTS),
        (nft("table inet f { " + BASE.format("drop", "tcp dport { 22, 8000-8100 } accept;") + " }"), (9000, 9100)),
        (nft("table inet f { " + BASE.format("accept", "tcp dport 22 accept; reject;") + " }"), (8080, 9000, 9100)),
        (nft("table inet f { " + BASE.format("accept", "tcp dport 9000 drop;") + " }"), (9000,)),
        (nft("table inet f { " + BASE.format("drop", "udp dport 8080 accept; tcp dport 22 accept;") + " }"), PORTS[1:]),
        (
            nft("table inet f { chain more { tcp dport 9000 accept; } " + BASE.format("drop", "jump more;") + " }"),
            (22, 8080, 9100),
        ),
        (
            nft(
                "table inet f { set open { type inet_service; elements = { 22, 9100 } } "
                + BASE.format("drop", "tcp dport @open accept;")
                + " }"
            ),
            (8080, 9000),
        ),
        (
            nft(
                "table inet f { "
                + BASE.format("drop", "tcp dport vmap { 22 : accept, 8080 : drop, 9000-9100 : accept };")
                + " }"
            ),
            (8080,),
        ),
        (nft("table inet f { " + BASE.format("drop", "ip saddr 10.0.0.0/8 accept;") + " }"), PORTS),
        ("iptables -P INPUT DROP\niptables -A INPUT -i lo -j ACCEPT\n", PORTS),
        (
            "iptables -P INPUT DROP\niptables -N extra\niptables -A INPUT -j extra\n"
            "iptables -A extra -p tcp -m multiport --dports 22,8080:8090 -j ACCEPT\n"
            "iptables -A extra -p udp --dport 9000 -j ACCEPT\niptables -A INPUT -j LOG\n",
            (9000, 9100),
        ),
        (
            "iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT\n"
            "iptables -A INPUT -p tcp --dport 22 -j ACCEPT\niptables -A INPUT -j REJECT\n",
            (8080, 9000, 9100),
        ),
    ],
    ids=range(14),
)
def test_real_rules(tmp_path: Path, rules: str, expected: tuple[int, ...]) -> None:
    assert closed(tmp_path, rules) == expected


def test_without_a_port_beyond_loopback_nothing_is_asked(tmp_path: Path) -> None:
    look = Look(Roots.under(tmp_path), {"PATH": str(tmp_path)}, Who())
    assert firewall(look, ()).closed == ()
    with pytest.raises(Unseen, match="no command `nft`; there is no command `iptables-save`"):
        firewall(look, (8080,))


@pytest.mark.parametrize(
    ("plant", "tool"),
    [
        (lambda base: (base / "etc/ufw/ufw.conf", "ENABLED=yes\n"), "ufw"),
        (lambda base: (base / "bin/nft", "#!/bin/sh\n"), "nft"),
        (lambda base: (base / "bin/iptables", "#!/bin/sh\n"), "iptables"),
        (lambda base: (base / "x", ""), None),
    ],
)
def test_what_manages_the_rules(tmp_path: Path, plant: object, tool: str | None) -> None:
    path, text = plant(tmp_path)  # type: ignore[operator]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    look = Look(Roots.under(tmp_path), {"PATH": str(tmp_path / "bin")}, Who())
    assert firewall(look, ()).tool == tool
