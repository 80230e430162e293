"""A small shop whose store has jobs in every state, and a browser-like client for its dashboard."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import httpx
from starlette.applications import Starlette

from holdfast import Context, Holdfast
from holdfast.dashboard import create

HOSTILE = '<img src=x onerror="alert(1)">\u202e\x1b[31m & "quoted" \'single\''
HIDDEN = "hunter2, which nobody shall see"


def shop(url: str) -> Holdfast:
    """An app with tasks that succeed, fail and wait."""
    app = Holdfast(url)
    app.queue("billing", limit=50)

    @app.task(name="billing.charge", queue="billing", retry=0, group=lambda customer: f"customer:{customer}")
    def charge(ctx: Context, customer: int, note: str = "", password: str = "") -> str:
        ctx.log(f"charging {customer}")
        if note == "fails":
            raise RuntimeError(f"no money {HOSTILE}")
        return f"charged {customer} {note}"

    @app.task(name="mail.send", queue="mail")
    def send(to: str) -> None: ...

    @app.cron("0 3 * * *", name="nightly")
    @app.task(name="reports.nightly", queue="reports")
    def nightly() -> None: ...

    return app


async def fill(app: Holdfast) -> dict[str, str]:
    """Jobs in most states; returns an id for each."""
    charge, send = app.tasks["billing.charge"], app.tasks["mail.send"]
    done = await charge.aenqueue(1, HOSTILE, HIDDEN)
    dead = await charge.aenqueue(2, "fails")
    await app.awork(drain=True)
    later = await send.options(delay=3600).aenqueue("ann@example.com")
    ready = await charge.aenqueue(3)
    waiting = await charge.aenqueue(3)
    return {
        "succeeded": done.id,
        "dead": dead.id,
        "scheduled": later.id,
        "ready": ready.id,
        "waiting": waiting.id,
    }


class Browser:
    """A visitor with cookies that posts forms as a browser does."""

    def __init__(self, app: Any, *, client: str = "127.0.0.1", base: str = "http://localhost:8642") -> None:
        transport = httpx.ASGITransport(app=app, client=(client, 50_000))
        self.http = httpx.AsyncClient(transport=transport, base_url=base)
        self.base = base

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.http.get(path, **more)

    async def page(self, path: str) -> str:
        """A page that must be there."""
        answer = await self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])
        return answer.text

    async def token(self, path: str = "/") -> str:
        found = re.search(r'name="token" value="([^"]+)"', (await self.get(path)).text)
        assert found is not None
        return found[1]

    async def post(
        self,
        path: str,
        fields: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        **form: Any,
    ) -> httpx.Response:
        """Send a form with a valid token, from our own page."""
        given = {"token": await self.token(), "here": "/jobs", **(fields or {}), **form}
        sent = {"origin": self.base, "sec-fetch-site": "same-origin"} if headers is None else dict(headers)
        return await self.http.post(path, data=given, headers=sent)

    async def post_under(self, prefix: str, path: str, **form: Any) -> httpx.Response:
        """Send a form to a dashboard that is mounted under a prefix."""
        given = {"token": await self.token(f"{prefix}/"), "here": f"{prefix}/jobs", **form}
        sent = {"origin": self.base, "sec-fetch-site": "same-origin"}
        return await self.http.post(f"{prefix}{path}", data=given, headers=sent)

    async def said(self, answer: httpx.Response) -> str:
        """The sentence shown after an action."""
        assert answer.status_code == 303, answer.text
        page = await self.page(answer.headers["location"])
        found = re.search(r'<div class="toast" role="status"><span>(.*?)</span>', page, re.S)
        return html.unescape(found[1]) if found else ""


def dashboard(app: Holdfast, **options: Any) -> Starlette:
    return create(app, **options)
