"""/api/v1/images: references in query and body, the author, what is refused."""

from __future__ import annotations

from tests.control.conftest import Served
from tests.control.memory_facade import IMAGE

DIGEST = "sha256:" + "3" * 64


async def test_a_pull_is_a_job(served: Served) -> None:
    answer = await served.unix.post("/api/v1/images/pull", json={"image": IMAGE}, headers={"X-Outrider-Author": "ann"})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/jobs/{answer.json()['id']}"
    assert (answer.json()["kind"], answer.json()["subject"]) == ("image_pull", IMAGE)
    assert served.facade.journal[-1].text == f"ann pulls {IMAGE}"
    assert (await served.unix.delete(answer.headers["location"])).json()["state"] == "cancelled"
    refused = await served.unix.post("/api/v1/images/pull", json={"image": "localhost/x"})
    assert (refused.status_code, refused.json()["code"]) == (409, "refused")
    for body in ({}, {"image": ""}, {"image": "x" * 600}, {"image": 3}, {"image": "x", "tls": False}):
        assert (await served.unix.post("/api/v1/images/pull", json=body)).status_code == 400


async def test_a_pin(served: Served) -> None:
    answer = await served.unix.put("/api/v1/images/pin", json={"image": IMAGE, "digest": DIGEST})
    assert (answer.status_code, answer.json()["digest"]) == (200, DIGEST)
    assert (await served.unix.put("/api/v1/images/pin", json={"image": IMAGE, "digest": "latest"})).status_code == 400
    assert (await served.unix.delete("/api/v1/images", params={"image": IMAGE})).status_code == 409
    assert (await served.unix.delete("/api/v1/images/pin", params={"image": IMAGE})).status_code == 204
    assert (await served.unix.delete("/api/v1/images/pin", params={"image": IMAGE})).status_code == 404


async def test_removal(served: Served) -> None:
    assert (await served.unix.delete("/api/v1/images")).status_code == 400
    answer = await served.unix.delete("/api/v1/images", params={"image": IMAGE})
    assert (answer.status_code, answer.json()["reference"]) == (200, IMAGE)
    assert (await served.unix.delete("/api/v1/images", params={"image": IMAGE})).status_code == 404
    assert (await served.unix.get("/api/v1/images")).json() == []
