#!/usr/bin/env python3
"""In the place of `systemctl`: units are JSON files in $UNITS, and what is asked is written down.

There is no systemd where tests run. A unit file is {text, active, enabled, process, fails: [verb, ...]}; one with
`process` is a real process, so that what is stopped is gone. `hangs` are verbs that take effect and do not return,
`returns` makes it run again after a stop, `state` and `load` are what systemd says of it; `system` is one that only
the system's manager knows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def main(words: list[str]) -> int:
    folder = Path(os.environ["UNITS"])
    user = "--user" in words
    words = [word for word in words if word not in ("--user", "--")]
    if (folder / "no-bus").exists():
        print("Failed to connect to bus: No medium found", file=sys.stderr)
        return 1
    names = [word for word in words[1:] if not word.startswith("--")]
    if words[0] == "show" and len(names) > 1:
        for name in names:
            main(["show", name])
            print()
        return 0
    verb, name = words[0], words[-1]
    with (folder / "asked").open("a") as log:
        log.write(f"{verb} {name}\n")
    file = folder / f"{name}.json"
    if not file.exists() or (user and json.loads(file.read_text()).get("system")):
        print("LoadState=not-found\nActiveState=inactive")
        return 0 if verb == "show" else 5
    unit = json.loads(file.read_text())
    if verb in unit.get("fails", ()):
        print(f"Failed to {verb} {name}: Access denied", file=sys.stderr)
        return 1
    match verb:
        case "show":
            print(f"Id={name}\nLoadState={unit.get('load', 'loaded')}\nMemoryCurrent={unit.get('memory', '[not set]')}")
            print(f"ActiveState={unit.get('state') or ('active' if unit['active'] else 'inactive')}")
            print(f"TriggeredBy={unit.get('triggers', '')}\nRequiredBy={unit.get('needing', '')}\nBoundBy=")
            print(f"NeedDaemonReload={'yes' if unit.get('stale') else 'no'}")
            print(f"UnitFileState={unit.get('enabled', 'disabled')}\nSourcePath={unit.get('source', '')}")
        case "cat":
            print(f"# /etc/systemd/system/{name}\n{unit['text']}")
        case "stop":
            if unit.get("pid"):
                os.kill(unit["pid"], signal.SIGTERM)
            unit |= {"active": bool(unit.get("returns")), "pid": None}
            for needing in unit.get("needing", "").split():
                other = folder / f"{needing}.json"
                other.write_text(json.dumps({**json.loads(other.read_text()), "active": False}))
        case "start":
            if unit.get("process"):
                nowhere = subprocess.DEVNULL  # whoever called reads until all have closed its pipes
                child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=nowhere, stderr=nowhere)
                unit["pid"] = child.pid
            unit["active"] = True
        case "disable":
            unit["enabled"] = "disabled"
        case _:
            return 2
    file.write_text(json.dumps(unit))
    if verb in unit.get("hangs", ()):
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
