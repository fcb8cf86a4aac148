"""What this host learns from running engines, and gives back to planning as `orchestrator.measured.Measured`.

`observing` looks at each engine that serves: the peak of its memory, how long it took to be ready, how fast
it decodes when one request runs alone. `ledger` keeps that in a database of its own, which may be lost
without losing anything else; `learned` makes of it what plans may count on. `ran` says under which heading a
measurement is filed, `deadlines` how long a start may take. `printed` reads the sizes that engines print
while they start; a file a runtime (`llama_cpp`, `vllm`, `sglang`) knows their words.
"""
