"""Splits a server's URL into parts and builds the forms of it that may be shown.

Called by `parse_url` and by the stores' connections. A URL is split once; the driver's form and every shown form are
built from the parts, never by a pattern over the text. Only listed options may be shown; a password and unlisted
options are not. An ambiguous URL is refused: one reading of it might show a part of its password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote_from_bytes, unquote_to_bytes

from ..errors import ConfigurationError
from ..frozen import Discreet

HIDDEN = "***"
_PLAIN_OPTIONS = frozenset(  # driver options whose values are not secret
    [
        *("host", "hostaddr", "port", "dbname", "user", "service", "application_name", "client_encoding"),
        *("sslmode", "sslrootcert", "sslnegotiation", "channel_binding", "gssencmode", "require_auth", "krbsrvname"),
        *("connect_timeout", "target_session_attrs", "load_balance_hosts", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("db", "username", "protocol", "client_name", "max_connections", "retry_on_timeout", "health_check_interval"),
        *("socket_timeout", "socket_connect_timeout", "socket_keepalive"),
        *("ssl_cert_reqs", "ssl_ca_certs", "ssl_check_hostname"),
    ]
)
_SECRET_OPTIONS = frozenset(  # shown by name, so that a reader sees where the password comes from
    [
        *("password", "passwd", "pwd", "passfile", "secret", "token", "auth", "options"),
        *("sslpassword", "ssl_password", "sslkey", "ssl_keyfile"),
    ]
)
_HOST = re.compile(r"(?:\[[0-9A-Za-z:.%_-]+\]|[^\[\]:\s]*)(?::([0-9]{0,5}))?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_SECRET_LENGTH_MIN = 3  # a shorter one occurs in any text


class ServerUrl(Discreet, frozen=True):
    """The parts of a server's URL: user and password decoded, the others as written."""

    user: bytes | None
    password: bytes | None
    hosts: str
    path: str | None  # None: no slash after the hosts
    options: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"<ServerUrl {self.hosts}>"

    def without(self, names: Iterable[str]) -> ServerUrl:
        """The same URL without options of these names."""
        mine = tuple(pair for pair in self.options if pair[0] not in names)
        return ServerUrl(self.user, self.password, self.hosts, self.path, mine)

    def driver_url(self, scheme: str) -> str:
        """The complete URL for the driver, including the password."""
        info = "" if self.user is None else _quoted(self.user)
        info += "" if self.password is None else f":{_quoted(self.password)}"
        at = "" if self.user is None else "@"
        return f"{scheme}://{info}{at}{self._place}{_query(f'{name}={value}' for name, value in self.options)}"

    def shown(self, scheme: str, plain: Iterable[str] = (), more: Iterable[str] = ()) -> str:
        """The URL as it may be shown. `plain`: further options that may be shown; `more`: appended to the options."""
        known, named = _PLAIN_OPTIONS.union(plain), self._named
        pairs = [
            f"{name}={value}" if name in known else f"{name}={HIDDEN}" if name in named else HIDDEN
            for name, value in self.options
        ]
        return f"{scheme}://{self._shown_user(scheme)}{self._place}{_query([*pairs, *more])}"

    def _shown_user(self, scheme: str) -> str:
        if self.user is None:
            return ""
        if self.password:
            return f"{_quoted(self.user)}:{HIDDEN}@"
        return f"{_quoted(self.user) if _is_postgres(scheme) else HIDDEN}@"

    @property
    def _named(self) -> frozenset[str]:
        """Options whose names may be shown. After a password in the query, an apparent name may be a part of it."""
        secret = [name for name, _ in self.options if name.lower() in _SECRET_OPTIONS]
        return _PLAIN_OPTIONS.union(secret) if secret else frozenset(name for name, _ in self.options)

    @property
    def _place(self) -> str:
        return self.hosts if self.path is None else f"{self.hosts}/{self.path}"

    def secrets(self, scheme: str) -> set[str]:
        """Everything that must not be shown, in every spelling we know."""
        hidden = [] if self.password is None else [self.password]
        if self.user is not None and not self.password and not _is_postgres(scheme):
            hidden = [self.user]
        named = self._named
        values = [value for name, value in self.options if name not in _PLAIN_OPTIONS]
        hidden += map(unquote_to_bytes, values)
        found = {*values, *(name for name, _ in self.options if name not in named)}
        for one in hidden:
            found |= {one.decode(errors="replace"), _quoted(one)}
        return {one for one in found if len(one) >= _SECRET_LENGTH_MIN}


def split_server_url(scheme: str, rest: str) -> ServerUrl:
    """Split what follows `scheme://` as the driver would; refuse what the driver could read differently."""
    libpq = _is_postgres(scheme)
    info, at, place = rest.rpartition("@")
    if "@" in info:
        raise unreadable(scheme, "it has more than one @")
    if any(mark in info for mark in ("/" if libpq else "/?#")):
        raise unreadable(scheme, "its user or password has one of / ? # in it")
    if "#" in place:
        raise unreadable(scheme, "it has a # in it")
    if libpq and (" " in rest or _BAD_PERCENT.search(rest)):
        raise unreadable(scheme, "it has a space in it, or a % that is not followed by two hexadecimal digits")
    user, colon, password = info.partition(":")
    place, _, query = place.partition("?")
    hosts, slash, path = place.partition("/")
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if found is None or int(found[1] or 0) > 65535:
            raise unreadable(scheme, "one of its hosts is not host, host:port or [IPv6 address]:port")
    return ServerUrl(
        unquote_to_bytes(user) if at else None,
        unquote_to_bytes(password) if colon else None,
        hosts,
        path if slash else None,
        tuple(_option(scheme, pair, one_equals=libpq) for pair in query.split("&")) if query else (),
    )


def _option(scheme: str, pair: str, *, one_equals: bool) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or (one_equals and "=" in value):
        raise unreadable(scheme, "one of its options is not name=value")
    return name, value


def unreadable(scheme: str, why: str) -> ConfigurationError:
    """The error of a URL that cannot be parsed: it shows nothing but the scheme."""
    return ConfigurationError(
        f"the {scheme}:// URL cannot be parsed: {why}. In users, passwords and options write "
        "@ as %40, / as %2F, ? as %3F, # as %23, & as %26, = as %3D, % as %25 and a space as %20."
    )


def shown_path(path: str) -> str:
    """A file path as it may be shown: without what would be user and password if it was meant as a server's URL."""
    first, last = path.find(":"), path.rfind("@")
    if first < 0 or last < first:
        return path
    return f"{path[: path.rfind('/', 0, first) + 1]}{HIDDEN}{path[last:]}"


def tellable(url: str, text: str) -> bool:
    """Whether a driver's message may be shown: it quotes nothing secret of the URL."""
    scheme, _, rest = url.partition("://")
    try:
        parts = split_server_url(scheme, rest)
    except ConfigurationError:
        return False
    return not any(secret in text for secret in parts.secrets(scheme))


def _is_postgres(scheme: str) -> bool:
    """For libpq a lone word before the @ is a role and may be shown; for Redis it is as often meant as a password."""
    return scheme in ("postgresql", "postgres")


def _query(pairs: Iterable[str]) -> str:
    text = "&".join(pairs)
    return f"?{text}" if text else ""


def _quoted(part: bytes) -> str:
    return quote_from_bytes(part, safe="")
