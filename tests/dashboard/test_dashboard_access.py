"""Who may do what: every route is walked unauthenticated, from another site, and read-only."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.routing import Route

from holdfast import Holdfast
from holdfast.dashboard import Access
from holdfast.dashboard.actions import VERBS
from holdfast.dashboard.api import ENDPOINTS
from holdfast.dashboard.pages import PAGES
from tests.dashboard.shop import HIDDEN, Browser, dashboard

OPEN = {"/login", "/health", "/static/{version}/{name}"}  # the only routes that anybody may ask for
PHRASE = "correct horse battery"


def routes(app: Any) -> list[tuple[str, str]]:
    return [
        (route.path, method)
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
        if method != "HEAD"
    ]


def concrete(path: str) -> str:
    return path.replace("{verb}", "cancel").replace("{version}", "x").replace("{name}", "x")


@pytest.mark.parametrize(
    ("options", "browser"),
    [
        pytest.param({}, {"client": "192.0.2.7"}, id="another machine"),
        pytest.param({}, {"base": "http://evil.example"}, id="a name that points here"),
        pytest.param({"password": PHRASE}, {}, id="no password given"),
        pytest.param({"access": lambda connection: None}, {}, id="refused by the app's own rule"),
    ],
)
def test_no_route_serves_a_stranger(
    app: Holdfast, jobs: dict[str, str], options: dict[str, Any], browser: dict[str, Any]
) -> None:
    served = dashboard(app, **options)

    async def walk() -> None:
        visitor = Browser(served, **browser)
        seen = 0
        for path, method in routes(served):
            if path in OPEN:
                continue
            answer = await visitor.http.request(
                method, concrete(path), headers={"origin": visitor.base, "sec-fetch-site": "same-origin"}
            )
            seen += 1
            program = path.startswith("/api/") or path == "/metrics"
            assert answer.status_code in ((401, 403, 421) if program else (303, 403, 421)), (method, path, answer.text)
            assert answer.status_code != 303 or "/login" in answer.headers["location"], (method, path)
            assert "billing" not in answer.text
            assert not any(id in answer.text for id in jobs.values())
        assert seen >= len(PAGES) + len(ENDPOINTS) + len(VERBS) + 4

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


def test_a_get_changes_nothing(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for verb in VERBS:
            assert (await visitor.get(f"/do/{verb}?id={jobs['ready']}")).status_code == 405

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": "http://evil.example", "sec-fetch-site": "cross-site"}, id="another site"),
        pytest.param({"origin": "http://localhost:9999", "sec-fetch-site": "same-site"}, id="another port"),
        pytest.param({"origin": "null"}, id="a sandboxed frame"),
        pytest.param({"sec-fetch-site": "same-site"}, id="a neighbour's name"),
        pytest.param({}, id="no word of where it comes from"),
    ],
)
def test_a_change_that_another_page_asked_for_is_refused(
    app: Holdfast, jobs: dict[str, str], headers: dict[str, str]
) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for verb in VERBS:
            answer = await visitor.post(f"/do/{verb}", {"id": jobs["ready"], "queue": "billing"}, headers=headers)
            assert answer.status_code == 403, verb

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


@pytest.mark.parametrize("kind", ["", "wrong", "other session"])
def test_a_change_without_the_session_s_own_token_is_refused(app: Holdfast, jobs: dict[str, str], kind: str) -> None:
    async def walk() -> None:
        served = dashboard(app)
        visitor, other = Browser(served), Browser(served)
        given = await other.token() if kind == "other session" else kind
        answer = await visitor.post("/do/cancel", {"id": jobs["ready"], "token": given})
        assert answer.status_code == 403

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


def test_read_only_refuses_every_change_and_offers_none(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app, read_only=True))
        for verb in VERBS:
            answer = await visitor.post(f"/do/{verb}", {"id": jobs["ready"], "queue": "billing", "entry": "nightly"})
            assert answer.status_code == 403, verb
        for path in ("/", "/jobs", f"/job?id={jobs['ready']}", "/dead", "/cron", "/queue?name=billing", "/tasks"):
            assert "/do/" not in await visitor.page(path), path

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


def test_roles_are_enforced_by_the_server(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app, access=lambda connection: Access(name="ann")))
        page = await visitor.page(f"/job?id={jobs['succeeded']}")
        assert HIDDEN not in page
        assert "charged" not in page
        assert "needs the role payload" in page
        dead = await visitor.page(f"/job?id={jobs['dead']}") + await visitor.page("/dead") + await visitor.page("/jobs")
        assert "no money" not in dead
        for verb in VERBS:
            assert (await visitor.post(f"/do/{verb}", id=jobs["ready"])).status_code == 403, verb
        operator = Browser(dashboard(app, access=lambda connection: Access(name="bob", operate=True)))
        assert (await operator.post("/do/discard", id=jobs["dead"])).status_code == 403
        assert (await operator.post("/do/cancel", id=jobs["waiting"])).status_code == 303

    asyncio.run(walk())
    assert app.job(jobs["waiting"]).state == "cancelled"
    assert app.dead.get(jobs["dead"])


def test_access_may_be_async_and_sees_the_request(app: Holdfast, jobs: dict[str, str]) -> None:
    async def access(connection: HTTPConnection) -> Access | None:
        return Access(name="ann") if connection.headers.get("x-user") == "ann" else None

    async def walk() -> None:
        visitor = Browser(dashboard(app, access=access), client="192.0.2.7", base="https://jobs.example.com")
        assert (await visitor.get("/")).status_code == 403
        assert (await visitor.get("/", headers={"x-user": "ann"})).status_code == 200

    asyncio.run(walk())


def test_a_password_opens_it_and_wrong_ones_are_slowed_down(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app, password=PHRASE), client="192.0.2.7", base="https://192.0.2.1")
        answer = await visitor.get("/jobs")
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?here=")
        login = answer.headers["location"]

        async def give(password: str) -> Any:
            token = await visitor.token(login)
            return await visitor.http.post(
                "/login",
                data={"token": token, "password": password, "here": "/jobs"},
                headers={"origin": visitor.base, "sec-fetch-site": "same-origin"},
            )

        assert (await give("wrong")).status_code == 401
        right = await give(PHRASE)
        assert right.status_code == 303
        assert right.headers["location"] == "/jobs"
        cookie = right.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "secure", "samesite=strict"))
        assert "billing.charge" in await visitor.page("/jobs")
        fresh = Browser(visitor.http._transport.app, client="192.0.2.8", base="https://192.0.2.1")  # type: ignore[attr-defined]
        visitor = fresh
        statuses = [(await give("wrong")).status_code for _ in range(6)]
        assert statuses[-1] == 429

    asyncio.run(walk())


def test_a_forged_or_old_session_opens_nothing(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app, password=PHRASE))
        for cookie in ("login.x.9999999999.deadbeef", "x", "login", "...", "login.x.y.z"):
            answer = await visitor.get("/jobs", cookies={"holdfast_session": cookie})
            assert answer.status_code == 303

    asyncio.run(walk())


def test_a_form_never_leads_to_another_site(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for here in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", ""):
            answer = await visitor.post("/theme", theme="dark", here=here)
            assert answer.headers["location"] == "/", here

    asyncio.run(walk())


def test_every_answer_carries_the_strict_headers(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        static = re.search(r'href="(/static/[^"]+)"', await visitor.page("/"))
        assert static is not None
        for path in ("/", "/jobs", "/nowhere", f"/job?id={jobs['dead']}", "/job?id=none", "/health", static[1]):
            answer = await visitor.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"

    asyncio.run(walk())


def test_a_huge_form_is_refused(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        assert (await visitor.post("/do/cancel", id="x" * 400_000)).status_code == 413
        answer = await visitor.post("/do/cancel", {"id": [f"job-{n}" for n in range(501)]})
        assert answer.status_code == 400

    asyncio.run(walk())


def test_metrics_are_served_to_whoever_may_see_the_dashboard(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app, password=PHRASE), client="192.0.2.7", base="https://192.0.2.1")
        refused = await visitor.http.get("/metrics")
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert b"holdfast_" not in refused.content
        given = await visitor.http.get("/metrics", headers={"authorization": f"Bearer {PHRASE}"})
        assert given.status_code == 200 and given.headers["content-type"].startswith("text/plain; version=")
        assert 'holdfast_queue_jobs{queue="mail",state="ready"}' in given.text
        assert HIDDEN not in given.text
        read_only = Browser(dashboard(app, read_only=True))
        assert (await read_only.http.get("/metrics")).status_code == 200

    asyncio.run(walk())
