#!/usr/bin/env python3
"""In the place of `systemctl`: units are JSON files in $UNITS, and what is asked is written down.

There is no systemd where tests run. A unit file is {text, active, enabled, process, fails: [verb, ...]}; one with
`process` is a real process, so that what is stopped is gone.
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
    words = [word for word in words if word not in ("--user", "--")]
    verb, name = words[0], words[-1]
    with (folder / "asked").open("a") as log:
        log.write(f"{verb} {name}\n")
    file = folder / f"{name}.json"
    if not file.exists():
        print("LoadState=not-found\nActiveState=inactive")
        return 0 if verb == "show" else 5
    unit = json.loads(file.read_text())
    if verb in unit.get("fails", ()):
        print(f"Failed to {verb} {name}: Access denied", file=sys.stderr)
        return 1
    match verb:
        case "show":
            print(f"Id={name}\nLoadState=loaded\nMemoryCurrent={unit.get('memory', '[not set]')}")
            print(f"ActiveState={'active' if unit['active'] else 'inactive'}")
            print(f"UnitFileState={unit.get('enabled', 'disabled')}\nSourcePath={unit.get('source', '')}")
        case "cat":
            print(f"# /etc/systemd/system/{name}\n{unit['text']}")
        case "stop":
            if unit.get("pid"):
                os.kill(unit["pid"], signal.SIGTERM)
            unit |= {"active": False, "pid": None}
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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
