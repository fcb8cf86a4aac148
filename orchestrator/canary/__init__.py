"""Canaries: whether an engine still says what its weights say, asked before it serves and now and then.

passages    what is asked: pure texts
reference   what the weights say to it, made once for each weights: values
judging     what an engine said, held against that: the verdict, pure
asking      asking one engine: requests, nothing decided
weights     which weights these are
records     what is kept: references, results, what is refuted
checking    when what is asked, and what follows from a verdict
    drafting    whether an engine drafts as its plan says, and what its silence is called: pure
    proving     the proof before ready, with a name for that
    watching    looking at engines that serve
"""

from orchestrator.canary.checking import Canary

__all__ = ["Canary"]
