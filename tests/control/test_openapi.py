"""/openapi.json is complete: every route, every answer, every refusal."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from api.control.app import create_app
from api.control.problems import MEDIA_TYPE, Problem
from orchestrator.plan import Plan
from orchestrator.views import DeploymentView
from tests.control.conftest import Served
from tests.control.memory_facade import MemoryFacade

ROUTES = {
    ("get", "/api/v1/host", "getHost"),
    ("get", "/api/v1/telemetry", "getTelemetry"),
    ("get", "/api/v1/health", "getHealth"),
    ("get", "/api/v1/issues", "listIssues"),
    ("get", "/api/v1/version", "getVersion"),
    ("get", "/healthz", "isAlive"),
    ("get", "/api/v1/images", "listImages"),
    ("post", "/api/v1/images/pull", "pullImage"),
    ("put", "/api/v1/images/pin", "pinImage"),
    ("delete", "/api/v1/images/pin", "unpinImage"),
    ("delete", "/api/v1/images", "removeImage"),
    ("get", "/api/v1/models", "listModels"),
    ("post", "/api/v1/models", "addModel"),
    ("delete", "/api/v1/models/{name}", "removeModel"),
    ("post", "/api/v1/models/{name}/verify", "verifyModel"),
    ("post", "/api/v1/pulls", "pullModel"),
    ("post", "/api/v1/pulls/preview", "previewPull"),
    ("post", "/api/v1/plans", "plan"),
    ("get", "/api/v1/measurements", "listMeasurements"),
    ("delete", "/api/v1/measurements", "forgetMeasurements"),
    ("get", "/api/v1/deployments", "listDeployments"),
    ("get", "/api/v1/deployments/{name}", "getDeployment"),
    ("put", "/api/v1/deployments/{name}/desired", "setDesired"),
    ("get", "/api/v1/deployments/{name}/room", "getRoom"),
    ("post", "/api/v1/deployments/{name}/restart", "restartDeployment"),
    ("post", "/api/v1/deployments/{name}/apply", "applyDeployment"),
    ("post", "/api/v1/deployments/{name}/drain", "drainDeployment"),
    ("get", "/api/v1/deployments/{name}/logs", "getLogs"),
    ("get", "/api/v1/deployments/{name}/why", "explainDeployment"),
    ("put", "/api/v1/deployments/{name}/pause", "pauseDeployment"),
    ("delete", "/api/v1/deployments/{name}/pause", "resumeDeployment"),
    ("get", "/api/v1/pauses", "listPauses"),
    ("put", "/api/v1/pauses", "pauseEverything"),
    ("delete", "/api/v1/pauses", "resumeEverything"),
    ("get", "/api/v1/engines", "listEngines"),
    ("get", "/api/v1/jobs", "listJobs"),
    ("get", "/api/v1/jobs/{job_id}", "getJob"),
    ("delete", "/api/v1/jobs/{job_id}", "cancelJob"),
    ("get", "/api/v1/events", "listEvents"),
    ("post", "/api/v1/reload", "reloadConfiguration"),
    ("post", "/api/v1/shutdown", "shutDown"),
    ("post", "/api/v1/prune", "prune"),
    ("get", "/metrics", "getMetrics"),
}
GATEWAY = {
    ("get", "/api/v1/gateway/table", "followRoutingTable"),
    ("post", "/api/v1/gateway/report", "reportGateway"),
}
STREAMS = {"getLogs", "listEvents", "followRoutingTable"}


def document(*, trusted: bool) -> dict[str, Any]:
    app = create_app(MemoryFacade(), version="1.2.3", trusted=trusted, token_digest=b"x" * 32)
    return app.openapi()


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, found) for path, item in schema["paths"].items() for method, found in item.items()]


@pytest.mark.parametrize(("trusted", "routes"), [(True, ROUTES | GATEWAY), (False, ROUTES)])
def test_the_routes_are_these(trusted: bool, routes: set[tuple[str, str, str]]) -> None:
    found = operations(document(trusted=trusted))
    assert {(method, path, operation["operationId"]) for method, path, operation in found} == routes


def test_every_operation_is_described() -> None:
    schema = document(trusted=True)
    tags = {tag["name"] for tag in schema["tags"]}
    for method, path, operation in operations(schema):
        name = f"{method} {path}"
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= tags, name
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), f"{name}: {parameter['name']}"


def test_every_answer_has_a_schema() -> None:
    for method, path, operation in operations(document(trusted=True)):
        good = {code: found for code, found in operation["responses"].items() if code.startswith("2")}
        assert len(good) == 1, path
        ((code, found),) = good.items()
        if code == "204":
            assert "content" not in found, path
            continue
        for media, content in found["content"].items():
            assert content["schema"], f"{method} {path}: {media}"
        assert ("text/event-stream" in found["content"]) == (operation["operationId"] in STREAMS), path


def test_every_refusal_is_a_problem() -> None:
    for method, path, operation in operations(document(trusted=True)):
        name = f"{method} {path}"
        bad = {code: found for code, found in operation["responses"].items() if not code.startswith("2")}
        assert any(code.startswith("4") for code in bad), name
        for code, found in bad.items():
            assert found["content"] == {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}, (name, code)
        if path != "/healthz" and "gateway" not in path:
            assert "401" in bad, name
        if "requestBody" in operation:
            assert {"400", "413", "415"} <= set(bad), name
        if "{" in path:
            assert {"400", "404"} <= set(bad), name


def test_schemas_are_those_of_the_types() -> None:
    schema = document(trusted=True)
    schemas = schema["components"]["schemas"]
    assert set(schemas["Problem"]["properties"]) == {f.name for f in dataclasses.fields(Problem)}
    assert set(schemas["DeploymentView"]["properties"]) == {f.name for f in dataclasses.fields(DeploymentView)}
    assert set(schemas["PlanDocument"]["properties"]) == {f.name for f in dataclasses.fields(Plan)} | {"digest"}
    assert not [name for name in schemas if "ValidationError" in name]
    wanted = set(re.findall(r"#/components/schemas/([A-Za-z0-9_.-]+)", str(schema)))
    assert wanted <= set(schemas)


def test_a_token_is_asked_for_but_not_by_healthz() -> None:
    schema = document(trusted=False)
    assert schema["security"] == [{"token": []}]
    assert schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert schema["paths"]["/healthz"]["get"]["security"] == []
    assert "security" not in document(trusted=True)


async def test_it_is_served(served: Served) -> None:
    answer = await served.unix.get("/openapi.json")
    assert answer.status_code == 200
    schema = answer.json()
    assert schema["info"]["version"] == "0.0.test"
    assert schema["openapi"].startswith("3.1")


async def test_answers_keep_to_their_schemas(served: Served) -> None:
    """The fields of each answer are those that the document promises."""
    schema = (await served.unix.get("/openapi.json")).json()
    await served.unix.put("/api/v1/deployments/smollm2/desired", json={"state": "running"})
    await served.unix.post("/api/v1/models", json={"name": "mine", "path": "/srv/m.gguf"})
    paths = ("host", "telemetry", "health", "version", "images", "models", "deployments", "engines", "jobs", "events")
    for path in paths:
        operation = schema["paths"][f"/api/v1/{path}"]["get"]
        promised = operation["responses"]["200"]["content"]["application/json"]["schema"]
        answer = (await served.unix.get(f"/api/v1/{path}")).json()
        if promised.get("type") == "array":
            promised, answer = promised["items"], answer[0]
        fields = schema["components"]["schemas"][promised["$ref"].rsplit("/", 1)[1]]["properties"]
        assert set(answer) == set(fields), path
    planned = (await served.unix.post("/api/v1/plans", json={"model": "smollm2"})).json()
    assert set(planned["plan"]) == set(schema["components"]["schemas"]["PlanDocument"]["properties"])
    assert set(planned["alternatives"][0]) == set(schema["components"]["schemas"]["RejectedDocument"]["properties"])
