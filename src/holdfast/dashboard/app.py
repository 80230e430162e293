"""The ASGI app: routes, the checks before each of them, security headers, and live updates.

`create` is the public face. GET never changes anything; every change is a POST to /do/VERB. The pages are made by
pages.py, the changes by actions.py. Handlers here only check, call and render.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import inspect
import json
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ..app import Holdfast
from ..backends import parse_url
from ..errors import (
    ArgumentsRejected,
    BackendUnavailable,
    ConfigurationError,
    CronEntryNotFound,
    DuplicateJob,
    HoldfastError,
    JobNotFound,
    OutcomeUnknown,
    StateConflict,
)
from ..inspection.store_metrics import Looker
from ..redact import Hook, Redact
from . import actions, api, formats
from .access import (
    ADMIN,
    COOKIE,
    SESSION_SECONDS,
    Access,
    Authorize,
    Password,
    Refused,
    Role,
    Sessions,
    bearer,
    check_api_client,
    check_host,
    check_same_site,
    is_local,
)
from .pages import PAGES, nav_counts
from .render import environment
from .request_bodies import BULK_MAX
from .store import KEPT_SECONDS, Changes, Reads
from .visit import NotFound, Visit
from .work_api import STEPS, Leasing

T = TypeVar("T")

OWN_FIELDS = ("token", "confirm")  # of the confirmation page
BODY_BYTES_MAX = 256 << 10  # not counting arguments or a result
ESCAPED_TIMES = 3  # JSON may be longer than what is stored: an é takes two bytes, but six if escaped
FIELDS_MAX = 2000
SAID_COMMAND_MAX = 300  # characters of the command shown after an action
STATUSES: tuple[tuple[tuple[type[HoldfastError], ...], int], ...] = (
    ((BackendUnavailable, OutcomeUnknown), 503),
    ((JobNotFound, CronEntryNotFound), 404),
    ((ConfigurationError, ArgumentsRejected), 400),
    ((StateConflict, DuplicateJob), 409),
)
LIVE_SECONDS = 0.35  # between two reads for an open page
LIVE_SEEN_SECONDS = 0.9  # a change is sent within this long …
LIVE_LOOK_MAX = 0.3  # … unless a read takes longer than this: then it reads less often, to spare the store
LIVE_STREAMS_MAX = 100
THEMES = ("system", "light", "dark")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def pause_after(look: float) -> float:
    """Seconds from one read for an open page to the next, if a read takes this long.

    A change that a read just misses is sent by the next one, which may share its result with another page.
    """
    if look > LIVE_LOOK_MAX:
        return 2 * look
    return max(look / 2, min(LIVE_SECONDS, LIVE_SEEN_SECONDS - KEPT_SECONDS - 2 * look))


_TIMES = re.compile(r">[^<]*</time>")  # the script keeps relative times up to date
STATIC = {
    "tokens.css": "text/css",
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


def create(
    app_or_url: Holdfast | str,
    *,
    read_only: bool = False,
    access: Authorize | None = None,
    redact: Hook | None = None,
    password: str | None = None,
    hosts: Collection[str] = (),
    secret: str | None = None,
) -> Starlette:
    """The dashboard of one store as an ASGI app, to serve or to mount under any prefix.

    Without `access` and `password` it serves only browsers on this machine. `access` gets the request and returns what
    its visitor may do, or None. `hosts` are the names it is reached by. Give `secret` if several processes serve it.
    """
    if not isinstance(app_or_url, Holdfast | str):
        raise ConfigurationError(f"create() takes an app or a URL, not {type(app_or_url).__name__}.")
    code = app_or_url if isinstance(app_or_url, Holdfast) else None
    url = app_or_url if isinstance(app_or_url, str) else app_or_url.url
    # A separate app: reading must not declare the user's rules. Only memory:// cannot be shared this way.
    store = code if code is not None and parse_url(url).scheme == "memory" else Holdfast(url)
    reads = Reads(store, {} if code is None else code.tasks)
    return Dashboard(store, code, reads, read_only, access, Redact(redact), password, hosts, Sessions(secret)).asgi()


class Dashboard:
    """The dashboard of one store."""

    def __init__(
        self,
        app: Holdfast,
        code: Holdfast | None,
        reads: Reads,
        read_only: bool,
        authorize: Authorize | None,
        redact: Redact,
        password: str | None,
        hosts: Collection[str],
        sessions: Sessions,
    ) -> None:
        self._code = code
        self._app, self._read_only, self._authorize, self._redact = app, read_only, authorize, redact
        self._password = None if password is None else Password(password)
        self._hosts, self._sessions = frozenset(hosts), sessions
        self._reads = reads
        self._templates = environment()
        self._streams = 0
        self._looker = Looker()  # for /metrics
        self._pages = {**PAGES, "api": api.page}
        folder = resources.files(__package__) / "static"
        self._static = {name: (folder / name).read_bytes() for name in STATIC}
        whole = hashlib.sha256(b"".join(self._static.values()))
        self._version = whole.hexdigest()[:12]  # in the URLs of static files, so that they can be cached for good

    def asgi(self) -> Starlette:
        """All routes. Each page is one of `pages.PAGES`; nothing else is reachable."""
        routes = [
            *(Route(f"/{name}", self._page, name=name or "overview") for name in self._pages),
            *(Route(endpoint.path, self._api_read) for endpoint in api.ENDPOINTS),
            *(Route(f"/api/do/{verb}", self._api_do, methods=["POST"]) for verb in actions.VERBS),
            *(Route(f"/api/{step}", self._api_work, methods=["POST"]) for step in STEPS),
            Route("/api/openapi.json", self._openapi),
            Route("/metrics", self._metrics),
            Route("/live", self._live),
            Route("/do/{verb}", self._do, methods=["POST"]),
            Route("/theme", self._theme, methods=["POST"]),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/static/{version}/{name}", self._file),
            Route("/health", self._health),
        ]
        handlers: Any = {Refused: self._refused, NotFound: self._not_found, HTTPException: self._http_error}
        handlers |= {HoldfastError: self._store_failed}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        if self._reads.scheme != "memory":
            await self._app.aclose()

    # ------------------------------------------------------------------ before anything

    async def _visitor(self, connection: HTTPConnection) -> Access:
        """The visitor's access; Refused if there is none."""
        if self._authorize is not None:
            known = self._authorize(connection)
            known = await known if inspect.isawaitable(known) else known
            if known is None:
                raise Refused(403, "You may not see this dashboard.")
            return known
        check_host(connection, self._hosts)
        if self._password is not None:
            given = bearer(connection) if is_api(connection) else None
            if given is not None and self._password.check(given):
                return ADMIN
            if self._sessions.kind(connection.cookies.get(COOKIE)) != "login":
                raise Refused(401, "Log in first, or send the password: `Authorization: Bearer …`.")
            return ADMIN
        if not is_local(connection):
            raise Refused(
                403,
                "This dashboard has no password, so it serves only browsers on its own machine. "
                "Start it with --password-file, or give create() an access= function.",
            )
        return ADMIN

    def _session(self, connection: HTTPConnection) -> str:
        """The visitor's session cookie, or a new one."""
        cookie = connection.cookies.get(COOKIE)
        return cookie if cookie and self._sessions.kind(cookie) else self._sessions.new("visit")

    async def _visit(self, connection: HTTPConnection, params: Any) -> Visit:
        access = await self._visitor(connection)
        now = await self._reads.clock_and_sample()
        return Visit(self._reads, access, params, root_of(connection), now, self._redact, self._read_only)

    # ------------------------------------------------------------------ pages

    async def _page(self, request: Request) -> Response:
        visit = await self._visit(request, request.query_params)
        name = request.url.path.removeprefix(visit.root).strip("/")
        template, values = await self._pages[name](visit)
        session = self._session(request)
        html = await self._render(request, visit, name, template, values, session)
        response = HTMLResponse(html, 400 if values.get("error") else 200, headers=HEADERS)
        self._remember(request, response, session)
        if request.cookies.get("holdfast_said"):
            response.delete_cookie("holdfast_said", path=visit.root or "/")
        return response

    async def _render(
        self, connection: HTTPConnection, visit: Visit, name: str, template: str, values: Any, session: str
    ) -> str:
        theme = connection.cookies.get("holdfast_theme", "system")
        shared = {
            "visit": visit,
            "root": visit.root,
            "page": name,
            "now": visit.now,
            "static": f"{visit.root}/static/{self._version}",
            "token": self._sessions.token(session),
            "theme": theme if theme in THEMES else "system",
            "scheme": self._reads.scheme,
            "store": self._reads.safe_url,
            "nav": await nav_counts(visit),
            "here": visit.link(name, **visit.params),
            "said": self._said(connection, session),
            "origin": f"{connection.url.scheme}://{connection.headers.get('host', '')}",
            "can_logout": self._password is not None,
            "ago": lambda moment: formats.ago(moment, visit.now),
            "since": lambda moment: formats.since(moment, visit.now),
            "prose": lambda text: formats.prose(text, visit.root, visit.now),
            "clock": lambda moment: formats.clock(moment, visit.now),
            "exact": lambda moment: formats.exact(formats.seconds_of(moment) or 0.0),
        }
        return self._templates.get_template(template).render(**shared, **values)

    def _remember(self, connection: HTTPConnection, response: Response, session: str) -> None:
        if connection.cookies.get(COOKIE) != session:
            self._set_cookie(connection, response, COOKIE, session, SESSION_SECONDS)

    def _set_cookie(self, connection: HTTPConnection, response: Response, name: str, value: str, age: int) -> None:
        response.set_cookie(
            name,
            value,
            max_age=age,
            path=root_of(connection) or "/",
            httponly=True,
            samesite="strict",
            secure=connection.url.scheme == "https",
        )

    def _said(self, connection: HTTPConnection, session: str) -> str:
        """The result of this session's last action, shown once."""
        signature, _, text = connection.cookies.get("holdfast_said", "").partition(".")
        with contextlib.suppress(ValueError):
            said = json.loads(bytes.fromhex(text)) if text else ""
            if said and hmac.compare_digest(signature, self._sessions.sign(f"said {session} {text}")):
                return str(said)
        return ""

    # ------------------------------------------------------------------ live updates

    async def _live(self, request: Request) -> Response:
        """Server-sent events: the page's content, whenever it has changed."""
        target = urlsplit(request.query_params.get("at", "/"))
        params = {name: values[0] for name, values in parse_qs(target.query).items()}
        visit = await self._visit(request, params)
        name = target.path.removeprefix(visit.root).strip("/")
        if name not in self._pages:
            raise Refused(404, "There is no such page.")
        if self._streams >= LIVE_STREAMS_MAX:
            raise Refused(503, "Too many pages are open. This one reloads every few seconds instead.")
        stream = self._changes(request, name, params, self._session(request))
        return StreamingResponse(stream, media_type="text/event-stream", headers={**HEADERS, "X-Accel-Buffering": "no"})

    async def _changes(self, request: Request, name: str, params: Any, session: str) -> AsyncIterator[str]:
        self._streams += 1
        last = ""
        try:
            while not await request.is_disconnected():
                began = time.monotonic()
                try:
                    visit = await self._visit(request, params)
                    template, values = await self._pages[name](visit)
                    html = await self._render(request, visit, name, template, values, session)
                except (HoldfastError, NotFound, Refused) as error:
                    yield f"event: lost\ndata: {json.dumps(str(error))}\n\n"
                else:
                    digest = hashlib.sha256(_TIMES.sub("", html).encode()).hexdigest()
                    if digest != last:
                        yield f"data: {json.dumps(html)}\n\n"
                    else:
                        yield ": nothing new\n\n"
                    last = digest
                await asyncio.sleep(pause_after(time.monotonic() - began))
        finally:
            self._streams -= 1

    # ------------------------------------------------------------------ changes

    async def _body(self, request: Request, most: int, too_large: str) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise Refused(413, too_large)
        return bytes(body)

    async def _form(self, request: Request) -> dict[str, list[str]]:
        """A form's fields, after the checks that every change needs."""
        check_same_site(request)
        body = await self._body(request, BODY_BYTES_MAX, "That is more than a form of this dashboard can hold.")
        try:
            form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError:
            raise Refused(400, "That is more than a form of this dashboard can hold.") from None
        session = request.cookies.get(COOKIE, "")
        if not self._sessions.kind(session) or not self._sessions.is_token(session, actions.first(form, "token")):
            raise Refused(403, "This form is no longer valid. Go back, reload the page and try again.")
        return form

    def _changes_for(self, access: Access, name: str) -> tuple[actions.Verb, Changes]:
        """The verb, and write access to the store, if this visitor may do this."""
        verb = actions.VERBS.get(name)
        if verb is None:
            raise Refused(404, "There is no such action.")
        self._need(access, verb.role)
        return verb, Changes(self._app, access.name, self._code)

    def _need(self, access: Access, role: Role) -> None:
        if self._read_only:
            raise Refused(403, "This dashboard is read-only.")
        if not access.may(role):
            raise Refused(403, f"This needs the role {role!r}.")

    async def _do(self, request: Request) -> Response:
        verb, changes = self._changes_for(await self._visitor(request), request.path_params["verb"])
        form = await self._form(request)
        body = actions.body_of(verb, form)
        if actions.asks(verb, body) and not actions.first(form, "confirmed"):
            return await self._ask(request, form, verb, changes, body)
        try:
            outcome = await actions.carry_out(verb, changes, body)
            if outcome.text:
                shown = {"title": outcome.said, "line": outcome.command, "text": outcome.text}
                back = own_path(request, actions.first(form, "here"))
                return self._plain_page(request, "text.html", 200, request.cookies[COOKIE], back=back, **shown)
            said = f"{outcome.said}\n{outcome.command}" if len(outcome.command) < SAID_COMMAND_MAX else outcome.said
        except HoldfastError as error:
            said = f"Not done: {error}"
        self._reads.forget()
        session = request.cookies[COOKIE]
        response = self._back(request, actions.first(form, "here"))
        text = json.dumps(said[:1000]).encode().hex()
        signed = f"{self._sessions.sign(f'said {session} {text}')}.{text}"
        self._set_cookie(request, response, "holdfast_said", signed, 60)
        return response

    async def _ask(
        self, request: Request, form: Mapping[str, list[str]], verb: actions.Verb, changes: Changes, body: Any
    ) -> Response:
        """The confirmation page: how many jobs it affects, and the command that does the same."""
        return self._plain_page(
            request,
            "confirm.html",
            200,
            request.cookies[COOKIE],
            verb=request.path_params["verb"],
            about=verb.about,
            bad=verb.role == "destroy",
            query=getattr(body, "query", None),
            queue=getattr(body, "queue", None),
            preview=await actions.preview(verb, body, self._reads, changes),
            most=BULK_MAX,
            fields=[(name, value) for name, values in form.items() for value in values if name not in OWN_FIELDS],
            line=actions.line_of(verb, body),
            back=own_path(request, actions.first(form, "here")),
        )

    def _back(self, request: Request, here: str) -> Response:
        """Redirect to the page the form was on; never to another site."""
        return RedirectResponse(own_path(request, here), 303, headers=HEADERS)

    async def _theme(self, request: Request) -> Response:
        await self._visitor(request)
        form = await self._form(request)
        response = self._back(request, actions.first(form, "here"))
        theme = actions.first(form, "theme")
        if theme in THEMES:
            self._set_cookie(request, response, "holdfast_theme", theme, 400 * 86400)
        return response

    # ------------------------------------------------------------------ the JSON API

    async def _api_read(self, request: Request) -> Response:
        visit = await self._visit(request, request.query_params)
        endpoint = api.READS[request.url.path.removeprefix(visit.root)]
        return json_response(await api.read(endpoint, visit))

    async def _metrics(self, request: Request) -> Response:
        """The store's metrics for Prometheus, for everyone who may see the dashboard."""
        await self._visitor(request)
        try:
            from ..metrics import scrape
        except ConfigurationError as error:  # the extra is not installed
            raise Refused(404, str(error)) from None
        status, kind, body = await scrape(self._app, self._looker)
        return Response(body, status, HEADERS, media_type=kind)

    async def _api_work(self, request: Request) -> Response:
        """Lease, renew, settle, leave: see work_api.py."""
        access = await self._visitor(request)
        self._need(access, "work")
        check_api_client(request)
        step = STEPS[request.url.path.rpartition("/")[2]]
        body = await self._json(request, step.body, "result_bytes_max")
        return json_response(await step.run(Leasing(self._app, self._code), body))

    async def _json(self, request: Request, kind: type[T], limit: str) -> T:
        """The decoded body. It may contain a result or arguments as large as the app's limit of this name."""
        largest: int = getattr(self._code or self._app, limit)
        most = BODY_BYTES_MAX + ESCAPED_TIMES * largest
        text = f"The body takes more than {most} bytes; {limit} is {largest}. Send less in one call."
        try:
            return msgspec.json.decode(await self._body(request, most, text), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(400, f"The body cannot be read: {error}.") from None

    async def _api_do(self, request: Request) -> Response:
        access = await self._visitor(request)
        verb, changes = self._changes_for(access, request.url.path.rpartition("/")[2])
        check_api_client(request)
        body = await self._json(request, verb.body, "args_bytes_max")
        try:
            outcome = await actions.carry_out(verb, changes, body)
        finally:
            self._reads.forget()
        return json_response(outcome)

    async def _openapi(self, request: Request) -> Response:
        await self._visitor(request)
        return json_response(api.openapi(root_of(request)))

    # ------------------------------------------------------------------ login, files, errors

    async def _login(self, request: Request) -> Response:
        check_host(request, self._hosts)
        if self._password is None:
            return RedirectResponse(f"{root_of(request)}/", 303, headers=HEADERS)
        session, error = self._session(request), ""
        if request.method == "POST":
            form = await self._form(request)
            if self._password.check(actions.first(form, "password")):
                response: Response = self._back(request, actions.first(form, "here"))
                self._set_cookie(request, response, COOKIE, self._sessions.new("login"), SESSION_SECONDS)
                return response
            error = "That is not the password."
        response = self._plain_page(request, "login.html", 401 if error else 200, session, error=error)
        self._remember(request, response, session)
        return response

    async def _logout(self, request: Request) -> Response:
        await self._form(request)
        response = RedirectResponse(f"{root_of(request)}/login", 303, headers=HEADERS)
        response.delete_cookie(COOKIE, path=root_of(request) or "/")
        return response

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refused(404, "There is no such file.")
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(self._static[name], media_type=STATIC[name], headers=headers)

    async def _health(self, _: Request) -> Response:
        return PlainTextResponse("ok", headers=HEADERS)

    def _plain_page(self, request: Request, template: str, status: int, session: str, **values: Any) -> Response:
        """A page without the navigation: login and errors."""
        root = root_of(request)
        theme = request.cookies.get("holdfast_theme", "system")
        html = self._templates.get_template(template).render(
            root=root,
            static=f"{root}/static/{self._version}",
            theme=theme if theme in THEMES else "system",
            token=self._sessions.token(session),
            here=request.query_params.get("here", f"{root}/"),
            **values,
        )
        return HTMLResponse(html, status, headers=HEADERS)

    async def _refused(self, request: Request, error: Exception) -> Response:
        refused = error if isinstance(error, Refused) else Refused(500, str(error))
        if refused.status == 401 and not is_api(request):
            here = str(URL(scope=request.scope).replace(scheme="", netloc="")) if request.method == "GET" else ""
            target = URL(f"{root_of(request)}/login").include_query_params(here=here)
            return RedirectResponse(str(target), 303, headers=HEADERS)
        return self._error_page(request, refused.status, refused.text)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return self._error_page(request, 404, str(error))

    async def _http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return self._error_page(request, status, "There is no such page." if status == 404 else str(error))

    async def _store_failed(self, request: Request, error: Exception) -> Response:
        status = next((status for kinds, status in STATUSES if isinstance(error, kinds)), 500)
        return self._error_page(request, status, str(error))

    def _error_page(self, request: Request, status: int, text: str) -> Response:
        if is_api(request):
            more = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            return json_response(api.ErrorReply(text), status, more)
        return self._plain_page(request, "error.html", status, self._session(request), code=status, text=text)


def own_path(connection: HTTPConnection, here: str) -> str:
    """A path of this dashboard given by a form; the overview for anything else."""
    root, parts = root_of(connection), urlsplit(here)
    own = parts.path.startswith(f"{root}/") and not here.startswith("//") and "\\" not in here and not parts.netloc
    return here if own else f"{root}/"


def is_api(connection: HTTPConnection) -> bool:
    """Whether the client is a program, which sends its password with each call and expects errors as JSON."""
    path = connection.url.path.removeprefix(root_of(connection))
    return path.startswith("/api/") or path == "/metrics"


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = msgspec.json.encode(value, enc_hook=str)
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type="application/json")


def root_of(connection: HTTPConnection) -> str:
    """The prefix this app is mounted under."""
    return str(connection.scope.get("root_path", "")).rstrip("/")
