"""SGLang's own parsers take what its adapter says: recorded for the quick suite, asked again by the slow one."""

from __future__ import annotations

import pytest

from orchestrator.models import Runtime
from tests.coverage.elements import shape
from tests.coverage.evidence import Recorded, recorded, rules
from tests.coverage.sglang_record import KNOWN_BAD, VERSIONS, ask, emitted


def _record(version: str) -> Recorded:
    (found,) = (r for r in recorded() if r.runtime is Runtime.SGLANG and r.version == version)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_record_is_of_what_the_adapter_says_today(version: str) -> None:
    record = _record(version)
    have, want = {shape(argv) for argv in record.accepted}, emitted(version)
    assert not want.keys() - have, "stale: python -m tests.coverage.sglang_record DATE"
    assert not have - want.keys(), "stale: python -m tests.coverage.sglang_record DATE"
    assert {rejection.argv for rejection in record.rejected} == set(KNOWN_BAD)
    assert all("error" in rejection.says for rejection in record.rejected)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_record_is_of_the_wheel_that_is_named(version: str) -> None:
    known, record = rules().wheels[f"sglang-{version}"], _record(version)
    assert (record.wheel, record.sha256) == (known.file, known.sha256)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_parser_still_says_so(version: str) -> None:
    argvs = [*emitted(version).values()]
    verdicts = ask(version, [*argvs, *KNOWN_BAD])
    assert [(argv, said) for argv, said in zip(argvs, verdicts, strict=False) if said is not None] == []
    refusals = {rejection.argv: rejection.says for rejection in _record(version).rejected}
    for argv, said in zip(KNOWN_BAD, verdicts[len(argvs) :], strict=True):
        assert (said or "")[:120] == refusals[argv], argv
