"""Plans for a user's own GGUF files on a host without a GPU."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import catalogue, gguf_file, planner
from orchestrator.errors import UsageError
from orchestrator.file_facts import FileFacts
from orchestrator.model_files import FileReader
from orchestrator.models import Drafter, Format, ModelEntry, Ngram, Speculation, Variant
from orchestrator.plan import Evidence, Method, PlanMount, Planned
from tests.planner import gguf_files
from tests.planner.hosts import cpu_host

CATALOGUE = catalogue.shipped()
MIB = 1 << 20


def entry(folder: Path, drafters: tuple[Method, ...] = (), mtp: bool = False, **more: object) -> ModelEntry:
    files = {
        Method.DFLASH: gguf_files.dflash,
        Method.DSPARK: lambda p: gguf_files.dflash(p, arch="dspark"),
        Method.EAGLE3: gguf_files.eagle3,
        Method.DRAFT: gguf_files.target,
    }
    target = gguf_files.target(folder / "m.gguf", arch="qwen35" if mtp else "qwen3", nextn=int(mtp))
    known = []
    for method in drafters:
        (folder / method).mkdir()
        path = files[method](folder / method / "d.gguf")
        known.append(Drafter(name=method.value, method=method, format=Format.GGUF, path=str(path)))
    variant = Variant(name="f32", format=Format.GGUF, quantisation="F32", path=str(target))
    return ModelEntry(name="tiny", aliases=("Tiny",), variants=(variant,), drafters=tuple(known), **more)  # type: ignore[arg-type]


def make(model: ModelEntry, *, available: int = 8192 * MIB, **what_if: object) -> Planned:
    files = FileReader().inspect(model, Path("/nowhere"))
    return planner.plan(model, cpu_host(available=available), CATALOGUE, files, what_if=what_if)


def test_dflash_is_planned_with_container_paths_and_two_slots(tmp_path: Path) -> None:
    plan = make(entry(tmp_path, (Method.DFLASH,))).plan
    assert plan is not None
    assert (plan.runtime, plan.method, plan.draft_tokens, plan.drafter) == ("llama.cpp", Method.DFLASH, 7, "dflash")
    assert plan.parallel == 2  # the embedded engine aborts with DFlash from three slots on
    assert plan.image == catalogue.EMBEDDED_IMAGE
    assert not plan.image_resolved
    assert plan.evidence is Evidence.PROVEN
    assert plan.mounts == (
        PlanMount(str(tmp_path), "/models/target"),
        PlanMount(str(tmp_path / "dflash"), "/models/drafter"),
    )
    argv = " ".join(plan.argv)
    assert "-m /models/target/m.gguf" in argv
    assert "-md /models/drafter/d.gguf" in argv
    assert "--alias tiny --host" in argv
    assert "--host /run/engine/engine.sock" in argv
    assert f"-c {plan.context * 2} -np 2" in argv
    assert str(tmp_path) not in argv
    assert plan.env == {"LLAMA_API_KEY": "{key}", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    assert {"image_unresolved", "cpu_only", "fits", "method"} <= {r.code for r in plan.reasons}


@pytest.mark.parametrize(
    ("drafters", "mtp", "best"),
    [
        ((Method.DRAFT, Method.EAGLE3, Method.DFLASH), True, Method.DFLASH),
        ((Method.DRAFT, Method.EAGLE3), True, Method.EAGLE3),
        ((Method.DRAFT,), True, Method.MTP),
        ((Method.DRAFT,), False, Method.DRAFT),
        ((), False, Method.NONE),
    ],
)
def test_auto_takes_the_best_method_there_is(
    tmp_path: Path, drafters: tuple[Method, ...], mtp: bool, best: Method
) -> None:
    planned = make(entry(tmp_path, drafters, mtp))
    assert planned.plan is not None
    assert planned.plan.method is best
    assert {p.method for p in planned.alternatives} == {*drafters, Method.NONE, *([Method.MTP] * mtp)} - {best}


def test_wrong_drafter_is_turned_down_before_launch(tmp_path: Path) -> None:
    model = entry(tmp_path, (Method.DFLASH,))
    gguf_files.dflash(tmp_path / "dflash" / "d.gguf", width=128)
    planned = make(model)
    assert planned.plan is not None
    assert planned.plan.method is Method.NONE
    assert [(r.code, r.method) for r in planned.rejected] == [("drafter_width", Method.DFLASH)]
    assert any(r.code == "turned_down" and "width 128" in r.text for r in planned.plan.reasons)


def test_missing_drafter_and_missing_model(tmp_path: Path) -> None:
    model = entry(tmp_path, (Method.DFLASH,))
    (tmp_path / "dflash" / "d.gguf").unlink()
    planned = make(model)
    assert planned.plan is not None
    assert planned.plan.method is Method.NONE
    assert planned.rejected[0].code == "drafter_file"
    (tmp_path / "m.gguf").unlink()
    planned = make(model)
    assert planned.plan is None
    assert planned.rejected[0].code == "model_file"
    assert str(tmp_path / "m.gguf") in planned.rejected[0].text


def test_a_method_that_is_asked_for_is_never_replaced(tmp_path: Path) -> None:
    model = entry(tmp_path, speculation=Speculation(method=Method.MTP))
    planned = make(model)
    assert planned.plan is None
    assert planned.rejected[0].code == "no_mtp_head"
    assert make(model, method="auto").plan is None  # a what-if of `auto` is no wish, the entry's stands
    forced = make(model, method="none").plan
    assert forced is not None
    assert forced.method is Method.NONE


def test_ngram_on_request_with_its_parameters(tmp_path: Path) -> None:
    spec = Speculation(method=Method.NGRAM, ngram=Ngram(kind="simple", match=4, longest=8))
    plan = make(entry(tmp_path, speculation=spec)).plan
    assert plan is not None
    argv = " ".join(plan.argv)
    assert "--spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 8" in argv
    assert plan.draft_tokens == 8
    again = make(entry(tmp_path, speculation=Speculation(method=Method.NGRAM))).plan
    assert again is not None
    assert "--spec-type ngram-mod" in " ".join(again.argv)


def test_slots_beyond_what_dflash_bears(tmp_path: Path) -> None:
    model = entry(tmp_path, (Method.DFLASH,), parallel=4)
    planned = make(model)
    assert planned.plan is not None
    assert (planned.plan.method, planned.plan.parallel) == (Method.NONE, 4)
    assert planned.rejected[0].code == "too_many_slots"
    forced = make(model, method="dflash")  # both were asked for: nothing is clipped in silence
    assert forced.plan is None
    assert "take parallel 2, or another method" in forced.rejected[0].text


def test_draft_length_beyond_the_block_is_clamped_aloud(tmp_path: Path) -> None:
    plan = make(entry(tmp_path, (Method.DFLASH,)), draft_tokens=16).plan
    assert plan is not None
    assert plan.draft_tokens == 7
    assert "draft_clamped" in {r.code for r in plan.reasons}
    assert "--spec-draft-n-max 7" in " ".join(plan.argv)


def test_what_if(tmp_path: Path) -> None:
    plan = make(entry(tmp_path, context=1024), ctx="2048", parallel=8).plan
    assert plan is not None
    assert (plan.context, plan.parallel) == (2048, 8)
    too_long = make(entry(tmp_path), ctx=65536)
    assert too_long.plan is None
    assert too_long.rejected[0].code == "context_too_long"
    with pytest.raises(UsageError, match="flavour"):
        make(entry(tmp_path), flavour="sweet")
    with pytest.raises(UsageError, match="ctx"):
        make(entry(tmp_path), ctx="many")


def test_too_big_says_the_bytes(tmp_path: Path) -> None:
    planned = make(entry(tmp_path), available=900 * MIB, ctx=32768, parallel=64)
    assert planned.plan is None
    (rejected,) = planned.rejected
    assert rejected.code == "too_big"
    assert rejected.expected_memory is not None
    assert str(rejected.expected_memory.total) in rejected.text
    assert str(rejected.expected_memory.budget) in rejected.text


def test_little_memory_takes_less_context(tmp_path: Path) -> None:
    model = entry(tmp_path)
    sizes = []
    for available in (8192, *range(1260, 1180, -8)):
        plan = make(model, available=available * MIB).plan
        if plan is None:
            continue
        assert plan.expected_memory.budget is not None
        assert plan.expected_memory.total <= plan.expected_memory.budget
        sizes.append(plan.context * plan.parallel)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 2


def test_same_inputs_same_digest_and_only_launching_things_change_it(tmp_path: Path) -> None:
    model = entry(tmp_path, (Method.DFLASH,))
    one, two = make(model).plan, make(model).plan
    assert one is not None
    assert two is not None
    assert one == two
    assert one.digest == two.digest
    quiet = replace(one, reasons=(), evidence=Evidence.UNTRIED, expected_memory=replace(one.expected_memory, kv=1))
    assert quiet.digest == one.digest
    assert replace(one, argv=(*one.argv, "-x")).digest != one.digest
    assert replace(one, env={}).digest != one.digest
    assert replace(one, limits=replace(one.limits, memory=1)).digest != one.digest


def test_resolving_the_image_fixes_the_digest(tmp_path: Path) -> None:
    plan = make(entry(tmp_path)).plan
    assert plan is not None
    image = "sha256:" + "ab" * 32
    fixed = planner.resolve(plan, image)
    assert (fixed.image, fixed.image_resolved) == (image, True)
    assert fixed.digest != plan.digest
    assert "image_unresolved" not in {r.code for r in fixed.reasons}
    assert planner.resolve(fixed, image) == fixed


def test_without_speculation_keeps_the_engine(tmp_path: Path) -> None:
    model = entry(tmp_path, (Method.DFLASH,))
    plan = make(model).plan
    assert plan is not None
    files = FileReader().inspect(model, Path("/nowhere"))
    plain = planner.without_speculation(plan, model, cpu_host(), CATALOGUE, files).plan
    assert plain is not None
    assert (plain.method, plain.drafter, plain.draft_tokens) == (Method.NONE, None, 0)
    assert (plain.variant, plain.context, plain.image) == (plan.variant, plan.context, plan.image)
    assert "--spec-type" not in plain.argv
    assert plain.digest != plan.digest


def test_ladder_goes_from_the_plan_to_the_plain_engine(tmp_path: Path) -> None:
    planned = make(entry(tmp_path, (Method.DFLASH, Method.DRAFT), mtp=True))
    assert planned.plan is not None
    rungs = planned.ladder
    assert rungs[0].plan.digest == planned.plan.digest
    assert [r.change for r in rungs] == ["plan", "fewer_slots", "method_mtp", "method_draft", "method_none"]
    assert [r.plan.method for r in rungs] == [Method.DFLASH, Method.DFLASH, Method.MTP, Method.DRAFT, Method.NONE]
    assert rungs[1].plan.parallel == planned.plan.parallel // 2


def test_file_reader_remembers_and_notices_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    real = gguf_file.read

    def counted(path: str) -> FileFacts:
        reads.append(path)
        return real(path)

    monkeypatch.setattr(gguf_file, "read", counted)
    model, reader = entry(tmp_path), FileReader()
    first = reader.inspect(model, Path("/nowhere"))
    assert reader.inspect(model, Path("/nowhere")) == first
    assert len(reads) == 1
    gguf_files.target(tmp_path / "m.gguf", layers=6)
    assert reader.inspect(model, Path("/nowhere")) != first


def test_planning_is_quick(tmp_path: Path) -> None:
    model = entry(tmp_path, (Method.DFLASH, Method.DRAFT, Method.EAGLE3), mtp=True)
    files = FileReader().inspect(model, Path("/nowhere"))
    took = []
    for _ in range(40):
        begin = time.process_time()
        planner.plan(model, cpu_host(), CATALOGUE, files)
        took.append(time.process_time() - begin)
    assert sorted(took)[37] < 0.05
