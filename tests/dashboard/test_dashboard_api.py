"""The JSON API: what it returns, what it changes, who may, and that its OpenAPI document tells the truth."""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance

from holdfast import Holdfast
from holdfast.dashboard import Access
from holdfast.dashboard.actions import VERBS
from holdfast.dashboard.api import ENDPOINTS
from holdfast.dashboard.work_api import STEPS
from tests.dashboard.shop import HIDDEN, Browser, dashboard, fill, shop

PHRASE = "correct horse battery"
ALL = Access(name="ann", payload=True, operate=True, destroy=True)
NAMED = {"/api/job": {"id": ""}, "/api/group": {"queue": "billing", "name": "customer:3"}}


async def call(visitor: Browser, verb: str, body: Any, **headers: str) -> Any:
    return await visitor.http.post(f"/api/do/{verb}", json=body, headers=headers)


def test_every_read_returns_json(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for endpoint in ENDPOINTS:
            params = {
                **NAMED.get(endpoint.path, {}),
                **({"id": jobs["dead"]} if endpoint.path in ("/api/job", "/api/history") else {}),
            }
            answer = await visitor.get(endpoint.path, params=params)
            assert answer.status_code == 200, (endpoint.path, answer.text)
            assert answer.headers["content-type"] == "application/json"
            assert HIDDEN not in answer.text
        listed = (await visitor.get("/api/jobs", params={"q": "state:dead"})).json()
        assert [one["id"] for one in listed["jobs"]] == [jobs["dead"]]
        assert listed["jobs"][0]["error"]["type"].endswith("RuntimeError")
        counted = (await visitor.get("/api/count", params={"by": "state"})).json()
        assert counted["groups"]["dead"] == 1
        told = (await visitor.get("/api/history", params={"id": jobs["dead"]})).json()
        assert [one["kind"] for one in told] == ["enqueued", "claimed", "failed", "dead"]
        assert (await visitor.get("/api/stats", params={"by": "x"})).status_code == 400
        whole = (await visitor.get("/api/job", params={"id": jobs["waiting"]})).json()
        assert [gate["name"] for gate in whole["gates"] if not gate["open"]][-1] == "Its group has no room"

    asyncio.run(walk())


def test_pages_of_the_api_continue_where_the_last_one_ended(app: Holdfast) -> None:
    async def walk() -> None:
        await app.aenqueue_many(app.tasks["mail.send"].bind(f"user-{number}") for number in range(25))
        visitor = Browser(dashboard(app))
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (await visitor.get("/api/jobs", params={"limit": "10", "after": after})).json()
            seen += [job["args"]["to"] for job in page["jobs"]]
            after = page["after"]
        assert seen == [f"user-{number}" for number in reversed(range(25))]
        for wrong in (
            {"limit": "0"},
            {"limit": "x"},
            {"limit": "9999"},
            {"q": "stat:dead"},
            {"sort": "x"},
            {"after": "x"},
        ):
            answer = await visitor.get("/api/jobs", params=wrong)
            assert answer.status_code == 400, wrong
            assert answer.json()["error"]

    asyncio.run(walk())


def test_calls_change_what_forms_change(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        done = (await call(visitor, "cancel", {"id": [jobs["ready"], "unknown"]})).json()
        assert done["done"] == 1
        assert [one["id"] for one in done["refused"]] == ["unknown"]
        assert done["command"] == f"holdfast cancel {jobs['ready']} unknown"
        assert (await call(visitor, "pause", {"queue": "billing", "reason": "why"})).status_code == 200
        assert any(queue.pause for queue in await app.queues.alist())
        assert (await call(visitor, "enqueue", {"task": "mail.send", "args": {"to": "7"}})).status_code == 200
        assert (await call(visitor, "enqueue", {"task": "nobody"})).status_code == 400
        assert (await call(visitor, "cron-run", {"entry": "nobody"})).status_code == 404
        wrong: list[Any] = [{}, {"id": []}, {"id": "x"}, {"id": ["x"], "more": 1}, [], "x"]
        for body in wrong:
            assert (await call(visitor, "cancel", body)).status_code == 400, body

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "cancelled"


def test_a_call_from_another_site_or_not_as_json_is_refused(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        body = {"id": [jobs["ready"]]}
        for headers in (
            {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
            {"origin": "null"},
            {"sec-fetch-site": "same-site"},
        ):
            for verb in VERBS:
                assert (await call(visitor, verb, body, **headers)).status_code == 403, (verb, headers)
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            answer = await visitor.http.post(
                "/api/do/cancel", content=f'{{"id": ["{jobs["ready"]}"]}}', headers={"content-type": kind}
            )
            assert answer.status_code == 415, kind
        assert (await visitor.get("/api/do/cancel")).status_code == 405

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


def test_the_api_obeys_roles_and_read_only(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        reader = Browser(dashboard(app, access=lambda connection: Access(name="ann")))
        for path in (f"/api/job?id={jobs['succeeded']}", "/api/jobs", "/api/dead", f"/api/history?id={jobs['dead']}"):
            text = (await reader.get(path)).text
            assert "charged" not in text
            assert "no money" not in text
        still = Browser(dashboard(app, read_only=True))
        for verb in VERBS:
            for visitor in (reader, still):
                answer = await call(visitor, verb, {"id": [jobs["ready"]]})
                assert answer.status_code == 403, verb
                assert answer.json()["error"]

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


def test_programs_give_the_password_with_each_call(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app, password=PHRASE), client="192.0.2.7", base="https://192.0.2.1")
        answer = await visitor.get("/api/jobs")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "jobs" not in answer.json()
        for phrase, status in ((PHRASE, 200), ("wrong", 401)):
            headers = {"authorization": f"Bearer {phrase}"}
            assert (await visitor.get("/api/jobs", headers=headers)).status_code == status
        assert (await visitor.get("/jobs", headers={"authorization": f"Bearer {PHRASE}"})).status_code == 303

    asyncio.run(walk())


# ----------------------------------------------------------------------------------------------------------------------
# Made-up calls: every answer is as the OpenAPI document says.


def test_made_up_calls_are_answered_as_the_document_says() -> None:
    app = shop("memory://")
    asyncio.run(fill(app))
    web = dashboard(app, access=lambda connection: ALL)
    document = schemathesis.openapi.from_asgi("/api/openapi.json", web)
    seen = set()
    for found in document.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(max_examples=8, derandomize=True, database=None)
        def answered(case: Any) -> None:
            answer = case.call(headers={"sec-fetch-site": "same-origin"})
            case.validate_response(answer, checks=(not_a_server_error, response_schema_conformance))

        answered()
        seen.add(operation.path)
    assert len(seen) == len(ENDPOINTS) + len(VERBS) + len(STEPS)
    app.close()
