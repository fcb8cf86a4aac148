"""How SGLang's server is started, so that its key stands in no command line and in no log.

SGLang takes its key with `--api-key` only, where every `ps` on the host would see it, and prints all its
arguments, the key among them, when it starts (0.5.23 srt/arg_groups/fields/serving.py; srt/entrypoints/engine.py).
So the interpreter is given this program instead of `-m sglang.launch_server`: it takes the key from the
environment into Python's `sys.argv`, which is not the process's command line, and blanks it in log records.
What it starts by `spawn` does not run it again, for a program given with `-c` is no module to import.
"""

from __future__ import annotations

KEY_VARIABLE = "SGLANG_API_KEY"
"""A name of ours: SGLang reads none."""

BOOT = f"""import logging, os, runpy, sys
key = os.environ["{KEY_VARIABLE}"]
make = logging.getLogRecordFactory()
def record(*args, **kwargs):
    made = make(*args, **kwargs)
    try:
        text = made.getMessage()
    except Exception:
        return made
    if key in text:
        made.msg, made.args = text.replace(key, "***"), ()
    return made
logging.setLogRecordFactory(record)
sys.argv[1:1] = ["--api-key=" + key]
runpy.run_module("sglang.launch_server", run_name="__main__")
"""
