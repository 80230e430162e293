"""Who may do what: hosts, credentials, roles, sessions, and proof that a change was requested by our own page.

Called by app.py before any handler runs. Every route but /login, /static and /health needs an `Access`; every change
needs the role for it, a token bound to the session, and an Origin that is ours. Nothing here reads the store.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.requests import HTTPConnection

Role = Literal["view", "payload", "operate", "destroy", "work"]
COOKIE = "holdfast_session"
SESSION_SECONDS = 12 * 3600
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
FAILURES_MAX = 5  # wrong passwords …
FAILURES_SECONDS = 60.0  # … within this time, over all clients: then logins are refused


class Access(Struct, frozen=True, kw_only=True):
    """What one visitor may do. Seeing the pages is implied; arguments, results and tracebacks need `payload`."""

    name: str = ""  # recorded with every change, e.g. as who paused a queue
    payload: bool = False
    operate: bool = False  # cancel, retry, pause, limits …: changes that can be undone
    destroy: bool = False  # discard and delete
    work: bool = False  # lease jobs over the API: see their arguments as they are, and settle them

    def may(self, role: Role) -> bool:
        """Whether this visitor has the role."""
        return role == "view" or bool(getattr(self, role))


ADMIN = Access(name="dashboard", payload=True, operate=True, destroy=True, work=True)
Authorize = Callable[[HTTPConnection], Access | Awaitable[Access | None] | None]


class Refused(Exception):
    """The request is refused. `status` is the HTTP status; the text is shown."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Sessions:
    """Signed sessions and the tokens bound to them. All processes that serve one dashboard need the same secret."""

    def __init__(self, secret: str | None) -> None:
        self._secret = (secret or secrets.token_urlsafe(32)).encode()

    def sign(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def new(self, kind: Literal["visit", "login"]) -> str:
        """A new session cookie. A `visit` proves nothing but that our page set it; a `login` knew the password."""
        body = f"{kind}.{secrets.token_urlsafe(16)}.{int(time.time()) + SESSION_SECONDS}"
        return f"{body}.{self.sign(body)}"

    def kind(self, cookie: str | None) -> str | None:
        """The kind of a valid session that we signed; else None."""
        body, _, signature = (cookie or "").rpartition(".")
        if not body or not hmac.compare_digest(self.sign(body), signature):
            return None
        kind, _, rest = body.partition(".")
        return kind if int(rest.rpartition(".")[2]) > time.time() else None

    def token(self, cookie: str) -> str:
        """The token that a form of this session must carry."""
        return self.sign(f"form {cookie}")

    def is_token(self, cookie: str, token: str) -> bool:
        return hmac.compare_digest(self.token(cookie), token)


class Password:
    """One password for everybody: checked in constant time, with a limit on wrong attempts."""

    def __init__(self, password: str) -> None:
        self._digest = hashlib.sha256(password.encode()).digest()
        self._failures: list[float] = []

    def check(self, given: str) -> bool:
        """Whether it is right; Refused after too many wrong ones."""
        now = time.monotonic()
        self._failures = [at for at in self._failures if at > now - FAILURES_SECONDS]
        if len(self._failures) >= FAILURES_MAX:
            raise Refused(429, "Too many wrong passwords. Wait a minute and try again.")
        right = hmac.compare_digest(hashlib.sha256(given.encode()).digest(), self._digest)
        if not right:
            self._failures.append(now)
        return right


def host_of(connection: HTTPConnection) -> str:
    """The requested host, without its port."""
    return urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""


def check_host(connection: HTTPConnection, hosts: Collection[str] | None) -> None:
    """Refuse host names that are not ours: another site may have pointed its own name at this address (DNS rebinding).

    A numeric address involves no name server, so it cannot be rebound.
    """
    host = host_of(connection)
    if host in LOOPBACK or host in (hosts or ()) or _is_address(host):
        return
    raise Refused(421, f"This dashboard does not serve the name {host!r}. Add it to hosts=, or --allow-host.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_local(connection: HTTPConnection) -> bool:
    """Whether the request came from this machine and was meant for it: one through a proxy has another host name."""
    client = connection.client
    near = client is not None and (client.host in LOOPBACK or client.host.startswith("127."))
    return near and host_of(connection) in LOOPBACK and "forwarded" not in _via(connection)


def _via(connection: HTTPConnection) -> str:
    return "forwarded" if {"forwarded", "x-forwarded-for", "via"} & set(connection.headers) else ""


def check_same_site(connection: HTTPConnection) -> None:
    """Refuse a change requested by another site's page."""
    site = connection.headers.get("sec-fetch-site")
    origin = connection.headers.get("origin")
    own = f"{connection.url.scheme}://{connection.headers.get('host', '')}"
    if site not in (None, "same-origin") or (origin is not None and not _same(origin, own)):
        raise Refused(403, "This request came from another site's page. Open the dashboard itself and try again.")
    if site is None and origin is None:
        raise Refused(403, "This request does not say which page it came from (no Origin and no Sec-Fetch-Site).")


def check_api_client(connection: HTTPConnection) -> None:
    """Refuse a call made by another site's page. For JSON, a browser sends a preflight request first, which fails here;
    a program that is not a browser sends no Origin."""
    kind = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "Send JSON, with `Content-Type: application/json`.")
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    own = f"{connection.url.scheme}://{connection.headers.get('host', '')}"
    if site not in (None, "same-origin", "none") or (origin is not None and not _same(origin, own)):
        raise Refused(403, "This request came from another site's page.")


def bearer(connection: HTTPConnection) -> str | None:
    """The password a program gives with each call: `Authorization: Bearer …`."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" and value.strip() else None


def _same(origin: str, own: str) -> bool:
    """Whether both name one host and port. A proxy that ends TLS changes the scheme, and only that."""
    return urlsplit(origin).netloc.lower() == urlsplit(own).netloc.lower()
