"""Every route over the unix socket: what goes in, what comes out."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import httpx

from hosts.facts import HostFacts
from orchestrator.plan import Plan
from tests.control.conftest import Served
from tests.control.memory_facade import BOOT, HOST


async def test_host_is_what_to_dict_writes(served: Served) -> None:
    answer = await served.unix.get("/api/v1/host")
    assert answer.status_code == 200
    facts = await served.facade.host()
    assert answer.json() == json.loads(json.dumps(facts.to_dict()))
    assert HostFacts.from_dict(answer.json()) == facts


async def test_health_version_and_healthz(served: Served) -> None:
    health = (await served.unix.get("/api/v1/health")).json()
    assert health["ok"] is True
    assert health["podman"] is False
    assert health["gateway"] is None
    assert health["loops"] == {"reconcile": 0.25}
    assert health["problems"][0]["code"] == "podman_unreachable"
    assert (await served.unix.get("/api/v1/version")).json() == {
        "name": "outrider",
        "version": "0.0.test",
        "api": "v1",
    }
    assert (await served.unix.get("/healthz")).json() == {"ok": True}


async def test_lists_are_the_views(served: Served) -> None:
    await served.facade.set_desired("smollm2", (await served.facade.deployment("smollm2")).desired, author="x")
    await start(served)
    for path, views in (
        ("models", await served.facade.models()),
        ("deployments", await served.facade.deployments()),
        ("engines", await served.facade.engines()),
        ("jobs", await served.facade.jobs()),
    ):
        answer = await served.unix.get(f"/api/v1/{path}")
        assert answer.status_code == 200, path
        assert answer.json() == json.loads(json.dumps([dataclasses.asdict(view) for view in views])), path


async def test_set_desired_is_idempotent_and_names_its_author(served: Served) -> None:
    first = await start(served, author="kim")
    assert first["desired"] == "running"
    assert first["desired_by"] == "kim"
    assert first["engine"]["generation"] == 1
    again = await start(served, author="lee")
    assert again == first
    assert [event.code for event in served.facade.journal] == ["desired_set"]
    assert (await served.unix.put("/api/v1/deployments/smollm2/desired", json={"state": "stopped"})).json()[
        "desired_by"
    ] == "api"


async def test_an_alias_with_a_slash_is_one_segment(served: Served) -> None:
    answer = await served.unix.get("/api/v1/deployments/org%2FSmolLM2")
    assert answer.status_code == 200
    assert answer.json()["deployment"] == "smollm2"
    assert (await served.unix.get("/api/v1/deployments/org/SmolLM2")).status_code == 404


async def test_restart_apply_drain(served: Served) -> None:
    await start(served)
    for verb, code, generation in (("restart", "restarted", 2), ("apply", "applied", 3), ("drain", "drained", 3)):
        answer = await served.unix.post(f"/api/v1/deployments/smollm2/{verb}", headers={"X-Outrider-Author": "kim"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["engine"]["generation"] == generation
        assert served.facade.journal[-1].code == code
        assert served.facade.journal[-1].text.endswith("says kim")


async def test_models_are_added_and_removed(served: Served) -> None:
    answer = await served.unix.post("/api/v1/models", json={"name": "mine", "path": "/srv/m.gguf"})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert (await served.unix.get(answer.headers["location"])).json() == job
    assert [j["id"] for j in (await served.unix.get("/api/v1/jobs")).json()] == [job["id"]]
    cancelled = await served.unix.delete(f"/api/v1/jobs/{job['id']}")
    assert cancelled.json()["state"] == "cancelled"
    gone = await served.unix.delete("/api/v1/models/smollm2?weights=true")
    assert gone.status_code == 204
    assert gone.content == b""
    assert served.facade.journal[-1].text == "smollm2, weights: True"


async def test_a_plan_comes_whole(served: Served) -> None:
    answer = await served.unix.post("/api/v1/plans", json={"model": "smollm2", "what_if": {"context": 8192}})
    assert answer.status_code == 200
    document = answer.json()
    assert document["plan"]["context"] == 8192
    assert Plan.from_dict(document["plan"]).digest == document["plan"]["digest"]
    assert document["alternatives"][0]["rejected"]["code"] == "no_accelerator"


async def test_reload(served: Served) -> None:
    shown = (await served.unix.post("/api/v1/reload", json={"dry_run": True})).json()
    assert shown["applied"] is False
    assert shown["changes"][0]["action"] == "drift"
    assert (await served.unix.post("/api/v1/reload")).json()["applied"] is True


async def test_shutdown(served: Served) -> None:
    answer = await served.unix.post("/api/v1/shutdown", json={"engines": True})
    assert answer.status_code == 202
    assert answer.json() == {"stopping": True, "engines": True}
    assert (await served.unix.post("/api/v1/shutdown")).json()["engines"] is False
    assert served.facade.shutdowns == [True, False]


async def test_events_as_pages(served: Served) -> None:
    for n in range(5):
        await served.facade.happen("tick", f"n {n}", "smollm2" if n % 2 else None)
    page: httpx.Response = await served.unix.get("/api/v1/events?limit=2")
    assert [event["sequence"] for event in page.json()] == [1, 2]
    assert page.json()[0]["boot_id"] == BOOT
    assert page.json()[0]["host"] == HOST
    assert page.links["next"]["url"] == "/api/v1/events?since=2&limit=2"
    rest = await served.unix.get("/api/v1/events?since=2&limit=3")
    assert [event["sequence"] for event in rest.json()] == [3, 4, 5]
    assert "link" not in rest.headers
    mine = await served.unix.get("/api/v1/events?deployment=smollm2")
    assert [event["sequence"] for event in mine.json()] == [2, 4]
    assert served.facade.open_iterators == 0


async def test_logs_as_a_list(served: Served) -> None:
    answer = await served.unix.get("/api/v1/deployments/smollm2/logs?tail=2")
    assert answer.json() == [{"stream": "stderr", "text": "line 4"}, {"stream": "stderr", "text": "line 5"}]
    assert served.facade.open_iterators == 0


async def test_gateway_report_reaches_the_daemon(served: Served) -> None:
    report = {
        "gateway_id": "g1",
        "uptime_s": 1.5,
        "models": {"smollm2": {"arrivals": 3, "waiting": 0}},
        "engines": {"a" * 16: {"in_flight": 1, "ttfb_s": None}},
        "later": "kept",
    }
    assert (await served.unix.post("/api/v1/gateway/report", json=report)).status_code == 204
    assert served.facade.reports == [report]


async def test_answers_are_not_kept_nor_guessed_at(served: Served) -> None:
    answer = await served.unix.get("/api/v1/version")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "server" not in answer.headers


async def start(served: Served, author: str = "test") -> Any:
    answer = await served.unix.put(
        "/api/v1/deployments/smollm2/desired", json={"state": "running"}, headers={"X-Outrider-Author": author}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_issues_say_what_to_look_at(served: Served) -> None:
    (issue,) = (await served.unix.get("/api/v1/issues")).json()
    assert (issue["code"], issue["subject"], issue["evidence"]) == ("low_disk", "host", {"free_bytes": 1})
    assert issue["text"]
    assert issue["hint"]
