"""Runs in vLLM's own virtual environment: reads command lines, and says what vLLM's parser and configuration make
of them. No weights are loaded.

Standard input has one JSON object a line: `argv` (what stands after `vllm serve`) and `env`. One verdict a line
comes back: `ok`, else `stage` (`argparse`, or the exception's class) and `says`.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
JUDGED = ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_CPU_KVCACHE_SPACE")
"""Variables that the configuration's checks read; the others would only slow this process down."""


def main() -> int:
    os.environ.update(QUIET)
    began = time.monotonic()
    arguments = import_module("vllm.engine.arg_utils").AsyncEngineArgs
    command_line = import_module("vllm.entrypoints.launchers.cli_args")
    server = import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    checks = import_module("vllm.config.vllm")
    parser_class = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser

    def judge(argv: list[str]) -> None:
        parsed = parser.parse_args(argv)
        if getattr(parsed, "model_tag", None):
            parsed.model = parsed.model_tag
        command_line.validate_parsed_serve_args(parsed)
        arguments.from_cli_args(parsed).create_engine_config(usage_context=server)

    parser = command_line.make_arg_parser(parser_class(prog="vllm serve"))
    print(json.dumps({"import_s": round(time.monotonic() - began, 1)}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        for name in JUDGED:
            os.environ.pop(name, None)
            if name in asked["env"]:
                os.environ[name] = asked["env"][name]
        # the newer runner needs triton, which only a GPU has: where a command line asks for that runner, the one
        # check for triton is answered as there, and all others are made
        vars(checks)["HAS_TRITON"] = "VLLM_USE_V2_MODEL_RUNNER" in asked["env"]
        verdict: dict[str, Any] = {"ok": True}
        try:
            judge(asked["argv"])
        except SystemExit:
            verdict = {"ok": False, "stage": "argparse", "says": "exit"}
        except BaseException as error:
            verdict = {"ok": False, "stage": type(error).__name__, "says": " ".join(str(error).split())[:300]}
        print(json.dumps(verdict), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
