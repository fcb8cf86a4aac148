"""amdsmi in a process that may hang or crash alone. Started by `hosts.amd_smi`.

Argument: LIFETIME. Answers one JSON object. The host's own Python module is tried
before the one from PyPI, whose structures fit only the ROCm releases around 7.0.
Where neither can be imported, the host's `amd-smi` command is asked instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hosts import amd_smi_text
from hosts.child_main import Answers, attempt, limit_lifetime

_MODULE = "amdsmi"
_COMMAND = 2.0
"""Seconds for the command: less than the parent waits, so that the module's own failure can still be told."""
_TEXT_LIMIT = 512 * 1024
# without the library: KeyError (7.0.2) or OSError; with a symbol less than the wrapper binds: AttributeError
_IMPORT_ERRORS = (ImportError, OSError, KeyError, AttributeError)


def places(environ: Mapping[str, str]) -> list[str]:
    """Folders in which a ROCm installation keeps its Python module, existing ones only."""
    roots = [environ[name] for name in ("ROCM_HOME", "ROCM_PATH") if environ.get(name)] or ["/opt/rocm"]
    try:
        wheel = importlib.util.find_spec("_rocm_sdk_core")
    except (ImportError, ValueError):
        wheel = None
    roots.extend(wheel.submodule_search_locations or [] if wheel is not None else [])
    folders = [Path(root) / "share/amd_smi" for root in roots]
    return [str(folder) for folder in folders if (folder / _MODULE).is_dir()]


def load(environ: Mapping[str, str]) -> tuple[Any, str | None, dict[str, str]]:
    """`(module, where it is from, {})`, or `(None, None, why not)`; the host's own reason wins."""
    first: BaseException | None = None
    for folder in [*places(environ), None]:
        if folder is not None:
            sys.path.insert(0, folder)
        try:
            module, error = attempt(lambda: importlib.import_module(_MODULE), _IMPORT_ERRORS)
        finally:
            if folder is not None:
                sys.path.remove(folder)
        if error is None:
            return module, folder or "python", {}
        first = first or error
        for name in [name for name in sys.modules if name.partition(".")[0] == _MODULE]:
            del sys.modules[name]  # a half-imported package would be found instead of the next one
    assert first is not None
    return None, None, {"error": type(first).__name__, "text": str(first)}


class Reader:
    """Calls of one handle, each of which may fail without taking the others along."""

    def __init__(self, smi: Any, handle: Any) -> None:
        self.smi = smi
        self.handle = handle
        self.errors: dict[str, int | str] = {}

    def get(self, field: str, call: Callable[[Any, Any], Any]) -> Any:
        """`call(module, handle)`, or None with the reason in `errors`."""
        caught = (self.smi.AmdSmiException, AttributeError, OSError, KeyError, TypeError, ValueError)
        value, error = attempt(lambda: call(self.smi, self.handle), caught)
        if error is not None:
            self.errors[field] = getattr(error, "err_code", type(error).__name__)
        return value

    def mapping(self, field: str, call: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """`get` for calls that answer with a dictionary."""
        value = self.get(field, call)
        return value if isinstance(value, dict) else {}


def describe(reader: Reader) -> dict[str, Any]:
    """One GPU in amdsmi's own units and spellings; `hosts.amd_smi` cleans them."""
    asic = reader.mapping("asic", lambda smi, gpu: smi.amdsmi_get_gpu_asic_info(gpu))
    power = reader.mapping("power", lambda smi, gpu: smi.amdsmi_get_power_info(gpu))
    activity = reader.mapping("activity", lambda smi, gpu: smi.amdsmi_get_gpu_activity(gpu))
    driver = reader.mapping("driver", lambda smi, gpu: smi.amdsmi_get_gpu_driver_info(gpu))

    def pool(name: str, which: str) -> Any:
        return reader.get(
            f"{name}_{which}",
            lambda smi, gpu: getattr(smi, f"amdsmi_get_gpu_memory_{which}")(gpu, getattr(smi.AmdSmiMemoryType, name)),
        )

    return {
        "bdf": reader.get("bdf", lambda smi, gpu: smi.amdsmi_get_gpu_device_bdf(gpu)),
        "uuid": reader.get("uuid", lambda smi, gpu: smi.amdsmi_get_gpu_device_uuid(gpu)),
        "name": asic.get("market_name"),
        "arch": asic.get("target_graphics_version"),
        "compute_units": asic.get("num_compute_units"),
        "power": [power.get(key) for key in ("socket_power", "current_socket_power", "average_socket_power")],
        "power_limit": power.get("power_limit"),
        "busy": activity.get("gfx_activity"),
        "temperature": reader.get(
            "temperature",
            lambda smi, gpu: smi.amdsmi_get_temp_metric(
                gpu, smi.AmdSmiTemperatureType.EDGE, smi.AmdSmiTemperatureMetric.CURRENT
            ),
        ),
        "driver": driver.get("driver_version"),
        "vram_total": pool("VRAM", "total"),
        "vram_used": pool("VRAM", "usage"),
        "gtt_total": pool("GTT", "total"),
        "gtt_used": pool("GTT", "usage"),
    }


def report(smi: Any) -> dict[str, Any]:
    """Initialise the library and describe every GPU it has."""
    try:
        smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
        handles = smi.amdsmi_get_processor_handles()
    except (smi.AmdSmiException, AttributeError, OSError) as error:
        return {"error": getattr(error, "err_code", type(error).__name__), "text": " ".join(str(error).split())}
    readers = [Reader(smi, handle) for handle in handles]
    return {"gpus": [{**describe(reader), "errors": reader.errors} for reader in readers]}


def command(environ: Mapping[str, str]) -> str | None:
    """Where the host's `amd-smi` is, or None."""
    folders = [f"{environ[name]}/bin" for name in ("ROCM_HOME", "ROCM_PATH") if environ.get(name)]
    return shutil.which("amd-smi", path=":".join([*folders, environ.get("PATH", ""), "/opt/rocm/bin"]))


def ask_command(environ: Mapping[str, str], seconds: float) -> dict[str, Any] | None:
    """What the host's `amd-smi` says within `seconds`; None where there is none, or no answer of it.

    It is this process's child: whoever kills this one's session kills it too.
    """
    found, end = command(environ), time.monotonic() + seconds
    if found is None:
        return None
    said = []
    for words in ("static", "list"):
        try:
            done = subprocess.run(
                [found, words, "--json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=max(end - time.monotonic(), 0.05),
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired):
            break
        said.append(amd_smi_text.document(done.stdout.decode("utf-8", "replace")[:_TEXT_LIMIT]) or [])
    if not said or not said[0]:
        return None
    return {"gpus": amd_smi_text.entries(*said)}


def main() -> None:
    """Entry point of the child."""
    limit_lifetime(float(sys.argv[1]))
    answers = Answers()
    smi, origin, failed = load(os.environ)
    if smi is not None:
        answers.send({"origin": origin, **report(smi)})
        return
    told = ask_command(os.environ, _COMMAND)
    answers.send(failed if told is None else {"origin": "amd-smi", "binding": failed, **told})


if __name__ == "__main__":
    main()
