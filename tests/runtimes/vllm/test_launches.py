"""Real starts of vLLM on the CPU, with what the adapter says: exact text, exact counts of drafted tokens.

One engine at a time; each takes 25 s on an idle machine and up to two minutes on a busy one.
`python -m tests.runtimes.vllm.test_launches [NAME...]` writes what was started into `tests/coverage/evidence`.
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Ngram, Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import EngineCounters, LaunchRequest
from orchestrator.settings import Settings
from tests.coverage.evidence import FOLDER, Recorded, missing
from tests.models import hf
from tests.models.tokenizer import recital
from tests.runtimes.vllm.recording import WHEEL_NAME
from tests.runtimes.vllm.running import VLLM, Engine, running
from tests.runtimes.vllm.venv import VERSION, WHEEL, Venv, ensure

EVIDENCE = FOLDER / f"vllm-{VERSION}-launched.json"
TOKENS = 128
PLAIN = LaunchRequest(
    model="TARGET",
    names=("m", "alias"),
    context=1024,
    parallel=4,
    backend=Backend.CPU,
    threads=1,
    kv=KvType.BF16,
    kv_pool=1 << 28,
    batch=1024,
    eager=True,
    version=VERSION,
    settings=Settings(dtype="float32"),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A start, and what comes of `TOKENS` greedy tokens: (drafts, drafted, accepted)."""

    request: LaunchRequest
    counts: tuple[int, int, int] | None


LAUNCHES: Mapping[str, Launch] = {
    "dflash": Launch(replace(PLAIN, method=Method.DFLASH, drafter=hf.DFLASH, draft_tokens=7), (16, 112, 112)),
    "dflash-3": Launch(replace(PLAIN, method=Method.DFLASH, drafter=hf.DFLASH_3, draft_tokens=7), (32, 224, 96)),
    "mtp": Launch(replace(PLAIN, model=hf.TARGET_MTP, method=Method.MTP, draft_tokens=3), (32, 96, 96)),
    "eagle3": Launch(
        replace(PLAIN, method=Method.EAGLE3, drafter=hf.EAGLE3, draft_tokens=4, prefix_caching=False), (26, 104, 104)
    ),
    "draft": Launch(
        replace(
            PLAIN,
            method=Method.DRAFT,
            drafter=hf.DRAFT,
            draft_tokens=5,
            trust_remote_code=True,
            settings=Settings(dtype="bfloat16", vision=True),
        ),
        (22, 110, 110),
    ),
    "ngram": Launch(replace(PLAIN, method=Method.NGRAM, draft_tokens=5, ngram=Ngram(match=8, longest=5)), None),
}


def placed(request: LaunchRequest, models: Path) -> LaunchRequest:
    """The same with models that are there."""
    target = hf.TARGET if request.model == PLAIN.model else request.model
    drafter = None if request.drafter is None else str(models / request.drafter)
    return replace(request, model=str(models / target), drafter=drafter)


def drafted(seen: EngineCounters) -> tuple[int | None, int | None, int | None]:
    return seen.drafts, seen.drafted, seen.accepted


def check(engine: Engine, launch: Launch) -> None:
    """Exact text, exact counts, and the key's door."""
    assert engine.text(TOKENS) == recital(TOKENS)
    seen = engine.counters()
    assert (seen.running, seen.waiting, seen.generated) == (0, 0, TOKENS)
    if launch.counts is not None:
        assert drafted(seen) == launch.counts
    else:
        assert seen.drafted
        assert seen.accepted
    with engine.client(None) as stranger:
        assert stranger.get("/v1/models").status_code == 401
    with engine.client() as client:
        assert {model["id"] for model in client.get("/v1/models").json()["data"]} == {"m", "alias"}
    assert engine.command.env["VLLM_API_KEY"] not in engine.log


@pytest.fixture(scope="module")
def venv() -> Venv:
    return ensure()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    hf.generate(folder)
    return folder


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM's caches: the second start knows the first one's findings."""
    return tmp_path_factory.mktemp("caches")


def test_what_is_emitted_today_was_started() -> None:
    recorded = Recorded.model_validate_json(EVIDENCE.read_text())
    assert (recorded.version, recorded.sha256) == (VERSION, WHEEL)
    today = [VLLM.command(request).argv for request in (*(one.request for one in LAUNCHES.values()), SCHEDULED)]
    assert not missing(today, recorded), "`python -m tests.runtimes.vllm.test_launches` starts them again"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LAUNCHES)
def test_every_method_drafts(name: str, venv: Venv, models: Path, caches: Path) -> None:
    launch = LAUNCHES[name]
    with running(venv, placed(launch.request, models), caches) as engine:
        check(engine, launch)


SCHEDULED = replace(LAUNCHES["dflash"].request, schedule=((1, 1, 7), (2, 4, 0)), parallel=4)
"""Drafts for one request alone, and not for two or more."""
SCHEDULE = "schedule"


def scheduled(engine: Engine) -> None:
    """One sequence drafts; four at once do not. What the four say is not looked at: where the scheduler lets one of
    them begin alone, the change of tier garbles its text on the older runner (seen on 0.32.0), the only one that a
    CPU has. The adapter asks for a schedule on runner V2 alone."""
    assert engine.text(TOKENS) == recital(TOKENS)
    assert drafted(engine.counters()) == (16, 112, 112)
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Say it."}],
        "max_tokens": TOKENS,
        "temperature": 0.8,
        "seed": 1,
        "n": 4,
    }
    with engine.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    seen = engine.counters()
    assert seen.generated == 5 * TOKENS
    assert seen.drafts is not None
    assert seen.drafts - 16 <= 4, "four sequences of 128 tokens would take 64 drafts"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tier_of_nothing_stops_drafting(venv: Venv, models: Path, caches: Path) -> None:
    with running(venv, placed(SCHEDULED, models), caches) as engine:
        scheduled(engine)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fp8_cache_of_target_and_drafter(venv: Venv, models: Path, caches: Path) -> None:
    """Where the CPU can (AVX-512); elsewhere vLLM says so, and that is recognised."""
    request = replace(LAUNCHES["dflash"].request, kv=KvType.FP8, settings=Settings(dtype="bfloat16"))
    assert VLLM.refuses(placed(request, models)) is None
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        with running(venv, placed(request, models), caches) as engine:
            assert engine.text(TOKENS) == recital(TOKENS)
            assert engine.counters().drafted
        return
    with (
        pytest.raises(AssertionError, match="is not supported by the CPU"),
        running(venv, placed(request, models), caches),
    ):
        raise NotImplementedError


def record(names: Sequence[str]) -> None:
    """Start these, or all, and keep their command lines as evidence; what is recorded of others stays."""
    venv = ensure()
    known = Recorded.model_validate_json(EVIDENCE.read_text()).accepted if EVIDENCE.exists() and names else ()
    accepted = list(known)
    with tempfile.TemporaryDirectory(prefix="or-hf-") as folder:
        models, caches = Path(folder) / "hf", Path(folder) / "caches"
        hf.generate(models)
        caches.mkdir()
        for name in names or (*LAUNCHES, SCHEDULE):
            print(name, file=sys.stderr)
            request = SCHEDULED if name == SCHEDULE else LAUNCHES[name].request
            with running(venv, placed(request, models), caches) as engine:
                if name == SCHEDULE:
                    scheduled(engine)
                else:
                    check(engine, LAUNCHES[name])
            accepted.append(VLLM.command(request).argv)
    today = dt.datetime.now(dt.UTC).date().isoformat()  # noqa: TID251 - the day that a record is of
    evidence = Recorded(
        runtime=Runtime.VLLM, how="launched", version=VERSION, wheel=WHEEL_NAME, sha256=WHEEL, date=today,
        test="tests/runtimes/vllm/test_launches.py", accepted=tuple(dict.fromkeys(accepted)),
    )  # fmt: skip
    EVIDENCE.write_text(evidence.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1:])
