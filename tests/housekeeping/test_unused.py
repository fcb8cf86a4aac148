"""What may go: the policy, and what counts as a claim on a thing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.embedded.image import LABEL_IMAGE, REPOSITORY
from containers.spec import ImageInfo, ImageUser
from orchestrator.catalogue import Catalogue, ImageEntry, shipped
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.errors import NotFound, Refused
from orchestrator.housekeeping import caches_here, claims, images_here, weights_here
from orchestrator.housekeeping.claims import Claims
from orchestrator.housekeeping.pruning import mounts_below, take_path, take_weights
from orchestrator.housekeeping.unused import DAY, TEXTS, Fate, Group, Kind, Thing, Wish, decide, freed
from orchestrator.models import ModelEntry
from orchestrator.plan import Plan, PlanMount
from orchestrator.planner.building import _volume
from orchestrator.views import Desired, JobState, JobView, State
from orchestrator.weights import shelf
from orchestrator.weights.choosing import source_of
from tests.daemon.world import a_plan, an_entry

THING = Thing(Kind.WEIGHTS, "/s/x", "x", "no_model", 100, age=2 * DAY)
ID = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("change", "wish", "reason"),
    [
        ({}, Wish(), "no_model"),
        ({"ours": False}, Wish(everything=True), "not_ours"),
        ({"used_by": ("model a",)}, Wish(everything=True), "in_use"),
        ({"wanted_by": ("a of the catalogue",)}, Wish(), "wanted"),
        ({"wanted_by": ("a of the catalogue",)}, Wish(everything=True), "no_model"),
        ({}, Wish(frozenset({Group.IMAGES})), "not_asked_for"),
        ({}, Wish(frozenset({Group.WEIGHTS})), "no_model"),
        ({}, Wish(older_than=3 * DAY), "too_young"),
        ({}, Wish(older_than=DAY), "no_model"),
        ({"age": None}, Wish(older_than=1.0), "age_unknown"),
        ({"age": None}, Wish(), "no_model"),
        ({"rests": 3 * DAY}, Wish(), "too_young"),
        ({"rests": 3 * DAY}, Wish(everything=True), "too_young"),
        ({"age": -5.0, "rests": DAY}, Wish(), "too_young"),
    ],
)
def test_each_reason(change: dict[str, object], wish: Wish, reason: str) -> None:
    decision = decide(dataclasses.replace(THING, **change), wish)  # type: ignore[arg-type]
    assert decision.reason == reason
    assert decision.reason in TEXTS
    assert (decision.action is Fate.GO) == (reason == "no_model")


_THINGS = st.builds(
    Thing,
    kind=st.sampled_from(Kind),
    key=st.just("k"),
    name=st.just("n"),
    why=st.just("superseded"),
    size=st.none() | st.integers(0, 10**12),
    age=st.none() | st.floats(-1e6, 1e8),
    ours=st.booleans(),
    used_by=st.just(()) | st.just(("engine a-1",)),
    wanted_by=st.just(()) | st.just(("a",)),
    rests=st.sampled_from([0.0, DAY]),
)
_WISHES = st.builds(
    Wish,
    groups=st.frozensets(st.sampled_from(Group)),
    everything=st.booleans(),
    older_than=st.floats(0, 1e8),
)


@given(_THINGS, _WISHES)
def test_nothing_used_or_foreign_ever_goes(thing: Thing, wish: Wish) -> None:
    if decide(thing, wish).action is Fate.GO:
        assert thing.ours
        assert not thing.used_by
        assert wish.everything or not thing.wanted_by
        assert thing.age is None or thing.age >= max(thing.rests, wish.older_than)


@given(st.lists(_THINGS, max_size=5), _WISHES)
def test_to_wish_for_more_frees_no_less(things: list[Thing], wish: Wish) -> None:
    more = dataclasses.replace(wish, groups=frozenset(), everything=True, older_than=0.0)
    assert freed(things, more) >= freed(things, wish)


# claims


def gathered(
    *deployments: Deployment,
    catalogue: Catalogue | None = None,
    jobs: tuple[JobView, ...] = (),
    pins: Sequence[str] = (),
) -> Claims:
    empty = Catalogue(models=(), images=(), combinations=(), origins={})
    return claims.gather(deployments, [catalogue or empty], jobs, "/s", pins=pins)


def launching(image: str) -> Plan:
    return dataclasses.replace(
        a_plan(),
        image=image,
        image_resolved=image.startswith("sha256:"),
        mounts=(PlanMount("/s/m", "/models/target"), PlanMount("/srv/own", "/models/drafter")),
        caches=(("outrider-vllm-x", "/cache"),),
    )


def test_an_engine_and_a_plan_claim_what_they_launch() -> None:
    d = Deployment(an_entry(), "h", desired=Desired.STOPPED)
    d.engines.append(Engine("e" * 16, "m", 3, launching(ID), "k", None, None, 0.0, state=State.DRAINING))
    found = gathered(d)
    assert found.used_images == {ID: ("engine m-3",)}
    assert found.used_paths == {"/s/m": ("engine m-3",)}  # what lies outside the store is not ours to remove
    assert found.used_volumes == {"outrider-vllm-x": ("engine m-3",)}
    d.engines.clear()
    assert gathered(d) == Claims()
    d.wanted = launching("docker.io/x/y")
    assert gathered(d).used_images == {"docker.io/x/y:latest": ("the plan of m",)}


def test_a_deployment_without_a_plan_claims_all_that_a_plan_could_name() -> None:
    catalogue = Catalogue(
        models=(),
        images=(ImageEntry(name="i", reference="r.io/i", runtime="vllm", backend="cuda", source="s"),),  # type: ignore[arg-type]
        combinations=(),
        origins={},
    )
    d = Deployment(an_entry(), "h", desired=Desired.RUNNING)
    found = gathered(d, catalogue=catalogue)
    named, built = (
        ImageInfo(ID, ("r.io/i:latest",), None, 9, {}),
        ImageInfo("sha256:2", (), None, 9, {LABEL_IMAGE: "x"}),
    )
    one, other = images_here.things([named, built], [], found, {})
    assert one.used_by == ("deployment m, which has no plan yet",)
    assert one.wanted_by == ("i of the catalogue",)
    assert other.used_by == ()


def test_models_of_the_owner_claim_and_those_of_the_catalogue_only_when_deployed() -> None:
    shown = shipped()
    name = shown.models[0].name
    apart = claims.gather([], [shown], (), "/s")
    assert not apart.used_paths
    assert apart.wanted_paths
    entry = shown.model(name)
    assert entry is not None
    deployed = claims.gather([Deployment(entry, "h")], [shown], (), "/s")
    assert deployed.used_paths
    mine = ModelEntry.model_validate(
        {"name": "mine", "variants": [{"name": "v", "format": "gguf", "quantisation": "F32", "path": "mine/x.gguf"}]}
    )
    own = claims.gather([], [shown.overlay((mine,), {"mine": "models.d/mine.toml"})], (), "/s")
    assert own.used_paths["/s/mine/x.gguf"] == ("model mine",)


def test_what_a_job_brings_is_claimed_by_it(tmp_path: Path) -> None:
    jobs = tuple(JobView("j", kind, "big", JobState.RUNNING, "", 0.0) for kind in ("model_pull", "image_pull"))
    found = gathered(jobs=jobs)
    assert found.image_jobs == ("image_pull of big",)
    assert found.weights_jobs == ("model_pull of big",)
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "x.gguf.partial").write_bytes(b"x")
    (thing,) = weights_here.things(tmp_path, found, now=10**10)
    assert decide(thing, Wish(everything=True)).reason == "in_use"
    ended = tuple(dataclasses.replace(job, state=JobState.DONE) for job in jobs)
    assert gathered(jobs=ended) == Claims()


# what is here


def test_an_image_that_was_pulled_here_is_ours_by_all_names_it_was_pulled_by() -> None:
    users = [ImageUser("c", "sha256:3", {})]
    images = [
        ImageInfo("sha256:1", ("r.io/x:1",), None, 5, {}),
        ImageInfo("sha256:2", ("r.io/x:2", "localhost/mine:1"), None, 5, {}),
        ImageInfo("sha256:3", (), None, 5, {}),
        ImageInfo("sha256:4", ("r.io/x:4",), None, 5, {}),
    ]
    brought = {"sha256:1": ("r.io/x:1",), "sha256:2": ("r.io/x:2",), "sha256:3": ("r.io/x",)}
    reasons = [decide(thing, Wish()).reason for thing in images_here.things(images, users, Claims(), brought)]
    assert reasons == ["not_named", "in_use", "in_use", "not_ours"]


def test_a_link_in_the_store_is_not_followed(tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    outside.mkdir()
    (outside / "x.gguf").write_bytes(bytes(1 << 20))
    store.mkdir()
    (store / "link").symlink_to(outside)
    (store / "real").mkdir()
    (store / "real" / "link").symlink_to(outside)
    (thing,) = weights_here.things(store, Claims(), now=10**10)
    assert thing.key == str(store / "real")
    assert thing.size is not None
    assert thing.size < 1 << 20
    take_path(Path(thing.key))
    assert (outside / "x.gguf").exists()


def test_a_folder_with_something_mounted_in_it_is_not_removed(tmp_path: Path) -> None:
    folder, bound, own = tmp_path / "f", tmp_path / "f" / "a b", tmp_path / "own"
    bound.mkdir(parents=True)
    own.mkdir()
    (own / "x.gguf").write_bytes(b"x")
    subprocess.run(["mount", "--bind", own, bound], check=True)
    try:
        assert mounts_below(folder) == [str(bound)]
        with pytest.raises(Refused, match="mounted at"):
            take_path(folder)
        assert (own / "x.gguf").exists()
    finally:
        subprocess.run(["umount", bound], check=True)
    take_path(folder)
    assert not folder.exists()
    with pytest.raises(NotFound):
        take_path(folder)


PLAIN = Wish()
A, B = "a" * 40, "b" * 40


def hub(store: Path, commit: str, *names: str, chosen: str = "") -> Path:
    """Files of a commit of org/m, recorded as pulled; those of `chosen` are what `:q4` means."""
    folder = shelf.commit_folder(store, "org/m", commit)
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"x" * 8192)
    files = {name: shelf.StoredFile(8192, "0" * 64, "hub", 1.0) for name in names}
    selections = {"gguf:q4": shelf.Selection((chosen,))} if chosen else {}
    shelf.keep(store, shelf.Record("org/m", commit, "http://hub", files, selections))
    return folder


def test_a_commit_that_no_model_is_pinned_to_goes_whole_and_of_the_others_what_no_model_is_made_of(
    tmp_path: Path,
) -> None:
    old = hub(tmp_path, A, "q4.gguf", "README.md")
    new = hub(tmp_path, B, "q4.gguf", "q8.gguf", "c.json", chosen="q4.gguf")
    entry = ModelEntry.model_validate(
        {"name": "m", "variants": [{"name": "v", "format": "gguf", "quantisation": "Q4", "repository": "org/m:q4"}]}
    )
    source = source_of(entry.variants[0])
    assert source is not None
    catalogue = Catalogue(models=(entry,), images=(), combinations=(), origins={"m": "models.d/m.toml"})

    def going(found: Claims, wish: Wish = PLAIN) -> dict[str, str]:
        things = weights_here.things(tmp_path, found, now=10**10)
        return {t.key: t.why for t in things if decide(t, wish).action is Fate.GO}

    mine = claims.gather([], [catalogue], (), str(tmp_path))
    assert going(mine) == {}, "nothing is settled yet: either may be meant"
    shelf.pin(tmp_path, source, B, asked="main", at=1.0)
    assert going(mine) == {str(old): "no_pin", str(new / "q8.gguf"): "no_model"}
    assert going(Claims()) == {str(old): "no_model", str(new): "no_model"}
    # an engine that still runs on the old one
    running = dataclasses.replace(mine, used_paths={str(old): ("engine m-1",)})
    assert going(running) == {str(new / "q8.gguf"): "no_model"}
    # of the catalogue alone
    shown = dataclasses.replace(mine, used_sources={}, wanted_sources=mine.used_sources, used_paths={})
    assert going(shown) == {str(old): "no_pin"}
    assert going(shown, Wish(everything=True)) == {str(old): "no_pin", str(new): "no_model"}

    for key in going(mine):
        take_weights(tmp_path, Path(key))
    assert not old.exists()
    assert shelf.record(tmp_path, "org/m", A) is None
    known = shelf.record(tmp_path, "org/m", B)
    assert known is not None
    assert set(known.files) == {"q4.gguf", "c.json"}
    assert shelf.find(tmp_path, source) is not None
    assert going(mine) == {}


def test_a_commit_that_is_on_its_way_rests_and_one_that_is_not_whole_keeps_its_files(tmp_path: Path) -> None:
    begun = hub(tmp_path, A, "q4.gguf.partial")
    (thing,) = weights_here.things(tmp_path, Claims(), now=begun.stat().st_mtime)
    assert (thing.kind, decide(thing, Wish()).reason) == (Kind.PARTIAL, "too_young")
    hub(tmp_path, B, "q8.gguf")  # `q4` of it was never chosen
    source = source_of(
        an_entry(variants=[{"name": "v", "format": "gguf", "quantisation": "Q", "repository": "org/m:q4"}]).variants[0]
    )
    assert source is not None
    shelf.pin(tmp_path, source, B, asked="main", at=1.0)
    found = Claims(used_sources={source: ("model m",)})
    (kept,) = [t for t in weights_here.things(tmp_path, found, now=10**10) if B in t.key]
    assert decide(kept, Wish(everything=True)).reason == "in_use"


def test_a_file_with_another_name_elsewhere_frees_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "x").write_bytes(bytes(1 << 20))
    alone = weights_here.tree_bytes(folder)
    assert alone >= 1 << 20
    os.link(folder / "x", folder / "y")
    assert weights_here.tree_bytes(folder) == alone
    os.link(folder / "x", tmp_path / "z")
    assert weights_here.tree_bytes(folder) < 1 << 20


def test_pins_hold_images_that_are_known_by_their_digest(tmp_path: Path) -> None:
    digest = "sha256:" + "d" * 64
    pinned = claims.pinned("r.io/x:1", digest)
    image = ImageInfo("sha256:1", (), digest, 5, {}, digests=(f"r.io/x@{digest}",))
    (thing,) = images_here.things([image], [], gathered(pins=[pinned]), {"sha256:1": ("r.io/x:1",)})
    assert thing.used_by == ("the pin of r.io/x",)
    (thing,) = images_here.things([image], [], gathered(), {"sha256:1": ("r.io/x:1",)})
    assert decide(thing, Wish()).reason == "unnamed"
    (thing,) = images_here.things([image], [], gathered(), {})
    assert decide(thing, Wish()).reason == "not_ours"


def test_a_volume_belongs_to_an_image_by_id_or_by_reference() -> None:
    image = ImageInfo(ID, (f"{REPOSITORY}:latest",), None, 5, {})
    names = [_volume("vllm", ID, "sm_86"), _volume("vllm", REPOSITORY, None), _volume("vllm", "other", "gfx1151")]
    folders = dict.fromkeys([*names, "outrider-mine"], "/nowhere")
    found = caches_here.volumes(folders, [image], [], now=0.0)
    assert [(thing.key, thing.why) for thing in found] == [
        (names[0], "rebuildable"),
        (names[1], "rebuildable"),
        (names[2], "no_image"),
    ]
