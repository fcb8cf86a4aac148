"""The shipped catalogue and profiles, and the plans they must give."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.facts import HostFacts
from orchestrator import catalogue, planner, profiles
from orchestrator.catalogue import reading
from orchestrator.catalogue.types import in_range
from orchestrator.errors import ConfigError, NotFound
from orchestrator.file_facts import FileFacts, location
from orchestrator.models import Format, ModelEntry, Variant
from orchestrator.plan import Evidence, Method, Plan, Planned
from orchestrator.runtimes import adapter, flags_of
from tests.planner.hosts import cpu_host

CATALOGUE = catalogue.shipped()
SERVER, CLAW = profiles.load("dankserver"), profiles.load("dankclaw")
MODELS = tuple(entry.name for entry in CATALOGUE.models)


def make(model: str, facts: HostFacts, **what_if: object) -> Planned:
    entry = CATALOGUE.model(model)
    assert entry is not None
    return planner.plan(entry, facts, CATALOGUE, {}, what_if=what_if)


def best(model: str, facts: HostFacts, **what_if: object) -> Plan:
    plan = make(model, facts, **what_if).plan
    assert plan is not None
    return plan


def codes(plan: Plan) -> set[str]:
    return {reason.code for reason in plan.reasons}


def test_dense_27b_on_the_3090_drafts_with_dflash2() -> None:
    plan = best("qwen3.8-27b", SERVER)
    assert (plan.runtime, plan.method, plan.draft_tokens) == ("vllm", Method.DFLASH, 7)
    assert (plan.variant, plan.drafter) == ("w4a16", "dflash2-w4a16")
    memory = plan.expected_memory
    assert memory.weights == 19_500_000_000
    assert memory.drafter == pytest.approx(1.19 * 2**30, rel=0.01)
    assert memory.budget is not None
    assert memory.total <= memory.budget < 24 * 2**30
    assert plan.context >= 8192
    fits = next(reason for reason in plan.reasons if reason.code == "fits")
    assert str(memory.total) in fits.text
    assert "18.16 GiB" in fits.text  # as the table of `outrider plan` has it
    argv = plan.argv
    assert argv[argv.index("--attention-backend") + 1] == "FLASH_ATTN"
    assert argv[argv.index("--max-model-len") + 1] == str(plan.context)
    assert plan.devices == ("nvidia.com/gpu=0",)
    assert plan.profile == "vllm-cuda"
    assert {mount.target for mount in plan.mounts} == {"/models/target", "/models/drafter"}
    assert {"weights_missing", "drafter_missing", "image_unresolved"} <= codes(plan)


def test_ling_on_strix_halo_uses_its_own_head_with_one_token() -> None:
    plan = best("ling-3.0-flash", CLAW)
    assert (plan.runtime, plan.method, plan.draft_tokens, plan.drafter) == ("vllm", Method.MTP, 1, None)
    assert plan.evidence is Evidence.PROVEN
    assert plan.argv[:2] == ("vllm", "serve")
    assert plan.argv[plan.argv.index("--attention-backend") + 1] == "TRITON_MLA"
    assert plan.devices == ("/dev/kfd", "/dev/dri/renderD128")
    assert plan.groups == (992, 993)
    assert plan.env["VLLM_ROCM_USE_AITER"] == "0"


def test_moe_35b_on_the_3090_says_what_it_turned_down() -> None:
    planned = make("qwen3.6-35b-a3b", SERVER)
    dflash = [r for r in planned.rejected if r.variant == "awq-4bit" and r.method is Method.DFLASH]
    (down,) = [r for r in dflash if r.runtime == "vllm"]
    assert (down.runtime, down.drafter, down.code, down.evidence) == ("vllm", "dflash", "too_big", Evidence.UNTRIED)
    assert down.expected_memory is not None
    assert down.expected_memory.budget is not None
    assert down.expected_memory.total > down.expected_memory.budget
    assert str(down.expected_memory.total) in down.text
    assert "untried" in down.text
    plan = planned.plan
    assert plan is not None
    assert plan.expected_memory.budget is not None
    assert plan.expected_memory.total <= plan.expected_memory.budget
    assert (plan.runtime, plan.method, plan.evidence) == ("llama.cpp", Method.NONE, Evidence.PROVEN)
    told = [reason.text for reason in plan.reasons if reason.code == "turned_down"]
    assert any(str(down.expected_memory.total) in text for text in told)
    refuted = [r for r in planned.rejected if r.code == "refuted"]
    assert refuted
    assert all(r.source for r in refuted)


@pytest.mark.parametrize("model", MODELS)
def test_plans_depend_on_the_gpu_and_nothing_else_of_the_host(model: str) -> None:
    for facts, other in ((SERVER, CLAW), (CLAW, SERVER)):
        here = make(model, facts)
        assert make(model, replace(facts, host="elsewhere", os=None, kernel=None)) == here
        swapped = make(model, replace(other, accelerators=facts.accelerators))
        assert swapped == here
        if here.plan is not None:
            assert swapped.plan is not None
            assert swapped.plan.digest == here.plan.digest


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("facts", [SERVER, CLAW, cpu_host(available=64 * 2**30)], ids=["3090", "strix", "cpu"])
def test_all_plans_are_well_formed(model: str, facts: HostFacts) -> None:
    planned = make(model, facts)
    plans = [p for p in (planned.plan, *planned.alternatives) if p is not None]
    assert len({p.digest for p in plans}) == len(plans)
    for plan in plans:
        assert flags_of(plan.argv) <= adapter(plan.runtime).flags
        assert "{key}" in plan.env.values()
        assert not any("/var/lib" in word for word in plan.argv)
        assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
        assert plan.expected_memory.budget is not None
        assert plan.expected_memory.total <= plan.expected_memory.budget
    json.dumps(planned.to_dict())
    for turned_down in planned.rejected:
        assert turned_down.text


def test_what_does_not_fit_anywhere() -> None:
    planned = make("ling-3.0-flash", SERVER)
    assert planned.plan is None
    assert {r.code for r in planned.rejected} == {"too_big"}


def test_kv_type_against_attention_backend() -> None:
    planned = make("qwen3.8-27b", SERVER, kv="fp8", attention="FLASH_ATTN", variant="w4a16")
    assert planned.plan is None
    assert any("fp8 with FLASHINFER" in r.text for r in planned.rejected if r.code == "vllm-fp8-kv-flash-attn")
    plan = best("qwen3.8-27b", SERVER, kv="fp8", attention="FLASHINFER", method="mtp", variant="w4a16")
    assert plan.argv[plan.argv.index("--attention-backend") + 1] == "FLASHINFER"


def test_forcing_a_refuted_method_is_possible_and_said() -> None:
    plan = best("qwen3.6-35b-a3b", SERVER, method="mtp", variant="autoround-int4")
    assert plan.evidence is Evidence.REFUTED
    assert any("refuted" in reason.text for reason in plan.reasons)


def test_schedule_with_a_tier_that_drafts_nothing() -> None:
    """Above the crossover vLLM itself stops drafting, where there are that many sequences."""
    roomy = replace(
        SERVER, accelerators=(replace(SERVER.accelerators[0], memory_total=80 * 2**30, memory_free=79 * 2**30),)
    )
    plan = best("qwen3.8-27b", roomy, parallel=8, variant="w4a16", method="dflash", drafter="dflash2-w4a16")
    config = json.loads(plan.argv[plan.argv.index("--speculative-config") + 1])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 7, 7], [8, 8, 0]]
    assert plan.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    one = best("qwen3.8-27b", SERVER)
    assert "num_speculative_tokens_per_batch_size" not in one.argv[one.argv.index("--speculative-config") + 1]


def test_dflash_on_vllm_is_kept_to_eight_sequences() -> None:
    roomy = replace(
        SERVER, accelerators=(replace(SERVER.accelerators[0], memory_total=80 * 2**30, memory_free=79 * 2**30),)
    )
    planned = make("qwen3.8-27b", roomy, parallel=32, variant="w4a16")
    assert planned.plan is not None
    assert planned.plan.method is not Method.DFLASH
    assert any(r.code == "too_many_slots" for r in planned.rejected)


def test_local_files_win_over_what_must_be_fetched() -> None:
    entry = CATALOGUE.model("qwen3.8-27b")
    assert entry is not None
    variant = entry.variants[1]
    file = FileFacts(
        path="/data/q4.gguf", size=17 * 10**9, format=Format.GGUF, architecture="qwen35", name=None,
        shape=variant.shape, tensor_bytes=17 * 10**9, vocab=248320, tokens_digest=None, nextn_layers=1,
    )  # fmt: skip
    plan = planner.plan(entry, SERVER, CATALOGUE, {location(variant): file}).plan
    assert plan is not None
    assert (plan.variant, plan.method) == ("q4-k-m", Method.MTP)
    assert "weights_missing" not in codes(plan)


def test_a_gpu_host_never_falls_back_to_its_cpu_in_silence() -> None:
    assert all(
        p.image != catalogue.EMBEDDED_IMAGE for p in (best("smollm2", SERVER), *make("smollm2", SERVER).alternatives)
    )
    plan = best("smollm2", SERVER, image="embedded-cpu")
    assert plan.image == catalogue.EMBEDDED_IMAGE
    assert plan.devices == ()
    assert "cpu_only" in codes(plan)
    strange = replace(SERVER, accelerators=(replace(SERVER.accelerators[0], vendor="intel", arch="xe2"),))
    planned = make("smollm2", strange)
    assert planned.plan is None
    assert planned.rejected[0].code == "no_image"


def test_a_lost_gpu_is_not_planned_for() -> None:
    gone = replace(SERVER.accelerators[0], details={"health": "lost"})
    planned = make("smollm2", replace(SERVER, accelerators=(gone,)))
    assert planned.plan is None
    assert [r.code for r in planned.rejected] == ["device_lost"]
    second = replace(SERVER.accelerators[0], pci="0000:02:00.0", devices=("nvidia.com/gpu=1",), index=1)
    assert best("smollm2", replace(SERVER, accelerators=(gone, second))).devices == ("nvidia.com/gpu=1",)


def test_an_image_of_the_users_own() -> None:
    plan = best("smollm2", SERVER, image="registry.example/llama:1")
    assert plan.image == "registry.example/llama:1"
    assert plan.runtime_version is None


def test_resolved_images_key_their_caches() -> None:
    plan = best("qwen3.8-27b", SERVER)
    fixed = planner.resolve(plan, "sha256:" + "1" * 64)
    other = planner.resolve(plan, "sha256:" + "2" * 64)
    assert len({plan.caches, fixed.caches, other.caches}) == 3
    assert all(name.startswith("outrider-") and name.endswith("-sm_86") for name, _ in fixed.caches)
    assert [path for _, path in fixed.caches] == [path for _, path in plan.caches]


def test_expired_proof_is_untried() -> None:
    known = next(c for c in CATALOGUE.combinations if c.model == "ling-3.0-flash" and c.evidence is Evidence.PROVEN)
    old = known.model_copy(update={"expires": dt.date(2026, 12, 31)})
    combinations = tuple(old if c is known else c for c in CATALOGUE.combinations)
    aged = CATALOGUE.model_copy(update={"combinations": combinations})
    entry = CATALOGUE.model("ling-3.0-flash")
    assert entry is not None
    for today, evidence in ((dt.date(2026, 12, 1), Evidence.PROVEN), (dt.date(2027, 1, 1), Evidence.UNTRIED)):
        planned = planner.plan(entry, CLAW, aged, {}, today=today)
        plans = [p for p in (planned.plan, *planned.alternatives) if p is not None]
        assert [p.evidence for p in plans if p.method is Method.MTP and p.runtime == "vllm"] == [evidence]


def test_version_ranges() -> None:
    assert in_range("0.33.0", ">=0.27.1,<0.34")
    assert in_range("v0.27.1", "==0.27.1")
    assert not in_range("0.34", ">=0.27.1,<0.34")
    assert not in_range(None, ">=0.1")
    assert in_range(None, None)
    assert in_range("0.33.0rc1", ">=0.33")


def test_everything_shipped_says_its_source() -> None:
    for entry in CATALOGUE.models:
        for variant in entry.variants:
            assert variant.source
            assert variant.weight_bytes
            assert variant.shape is not None
        assert all(d.source and d.weight_bytes and d.shape for d in entry.drafters)
    assert all(c.source for c in CATALOGUE.combinations)
    names = {i.name for i in CATALOGUE.images}
    assert all(c.image in names or "*" in c.image for c in CATALOGUE.combinations)
    assert {c.model for c in CATALOGUE.combinations} - {"*"} <= set(MODELS)


def test_users_models_replace_shipped_ones_by_name() -> None:
    mine = ModelEntry(
        name="smollm2",
        aliases=("Mine",),
        variants=(Variant(name="mine", format=Format.GGUF, quantisation="F16", path="smollm2/m.gguf"),),
    )
    laid = CATALOGUE.overlay((mine,), {"smollm2": "models.d/smollm2.toml"})
    assert laid.model("Mine") == laid.model("smollm2") == mine
    assert laid.model("SmolLM2") is None
    assert laid.origins["smollm2"] == "models.d/smollm2.toml"
    assert laid.origins["qwen3.8-27b"] == "catalogue"
    assert len(laid.models) == len(CATALOGUE.models)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smolm2", "did you mean 'smollm2'?"),
        ("qwen/qwen3.8-27b", "did you mean 'Qwen/Qwen3.8-27B'?"),
        ("zzz", f"there are {', '.join(sorted(MODELS))} (`outrider models`"),
    ],
)
def test_a_name_that_nobody_has_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(NotFound) as raised:
        CATALOGUE.find(name)
    assert (raised.value.hint or "").startswith(hint)
    assert CATALOGUE.find("SmolLM2").name == "smollm2"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[[model]]\nname = 'a'\n", "model[a].variants"),
        ("[[image]]\nname = 'a'\nfoo = 1\n", "image[a]"),
        ("[[combination]]\nruntime = 'vllm'\nmethod = 'dflush'\n", "combination[0]"),
        ("[[modell]]\n", "modell"),
        ("model = 3\n", "model"),
        ("not toml", "bad.toml"),
    ],
)
def test_bad_catalogue_files_name_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        reading.catalogue([file], "here")
    assert caught.value.file == str(file)
    assert key in caught.value.detail


def test_profiles() -> None:
    assert profiles.names() == ("dankclaw", "dankserver")
    with pytest.raises(NotFound, match="nowhere"):
        profiles.load("nowhere")
    for name in profiles.names():
        facts = profiles.load(name)
        assert facts.host == name
        assert HostFacts.from_dict(facts.to_dict()) == facts


@given(
    model=st.sampled_from(MODELS),
    free=st.integers(0, 140 * 2**30),
    more=st.integers(0, 64 * 2**30),
    base=st.sampled_from([SERVER, CLAW, cpu_host()]),
    wish=st.fixed_dictionaries(
        {},
        optional={
            "context": st.sampled_from([1024, 8192, 65536, 262144]),
            "parallel": st.integers(1, 16),
            "method": st.sampled_from(["none", "mtp", "dflash"]),
        },
    ),
    name=st.text(min_size=1, max_size=12),
)
@settings(max_examples=40, deadline=None)
def test_budgets_hold_and_memory_only_helps(
    *, model: str, free: int, more: int, base: HostFacts, wish: dict[str, object], name: str
) -> None:
    def with_free(amount: int) -> HostFacts:
        total = 256 * 2**30
        devices = tuple(replace(a, memory_total=total, memory_free=amount) for a in base.accelerators)
        return replace(base, accelerators=devices, memory=replace(base.memory, total=total, available=amount))

    planned = make(model, with_free(free), **wish)
    roomier = make(model, with_free(free + more), **wish)
    for answer in (planned, roomier):
        for plan in (answer.plan, *answer.alternatives):
            if plan is not None:
                assert plan.expected_memory.budget is not None
                assert plan.expected_memory.total <= plan.expected_memory.budget
    if planned.plan is not None:
        assert roomier.plan is not None
        kinds = {(p.runtime, p.variant, p.method, p.drafter) for p in (planned.plan, *planned.alternatives)}
        bigger = {(p.runtime, p.variant, p.method, p.drafter) for p in (roomier.plan, *roomier.alternatives)}
        assert kinds <= bigger or len(roomier.alternatives) >= planner.MOST_ALTERNATIVES
    assert make(model, replace(with_free(free), host=name), **wish) == planned


@pytest.mark.parametrize("host", [SERVER, CLAW])
def test_a_gpu_that_no_container_can_be_given_is_not_planned_for(host: HostFacts) -> None:
    """An engine without its GPU would run on the CPU, and nobody would know why it is slow."""
    unnamed = replace(host.accelerators[0], devices=())
    planned = make("smollm2", replace(host, accelerators=(unnamed,)))
    assert planned.plan is None
    assert [r.code for r in planned.rejected] == ["device_unnamed"]
    assert unnamed.pci in planned.rejected[0].text
    second = replace(host.accelerators[0], pci="0000:02:00.0", index=1)
    assert best("smollm2", replace(host, accelerators=(unnamed, second))).devices == second.devices
    assert best("smollm2", replace(host, accelerators=(unnamed,)), image="embedded-cpu").devices == ()
