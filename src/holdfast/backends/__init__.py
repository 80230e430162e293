"""Finds the store for a URL.

Called by the app and the command line. Parsing a URL does no I/O and imports no driver; only `open_backend` imports the
store, and it does not connect: `Backend.open` does. Messages never contain a URL's password: urls.py decides which
parts may be shown.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, unquote_plus

from msgspec import field
from msgspec.structs import replace

from ..clock import Clock
from ..errors import BackendNotInstalled, ConfigurationError
from ..frozen import Discreet
from ..lazy import import_lazily, uncollected
from .contract import Backend
from .urls import ServerUrl, shown_path, split_server_url

if TYPE_CHECKING:
    import difflib
else:
    import_lazily(globals(), "difflib")

_CLUSTER_SCHEMES = {  # ours → the driver's for one node
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
    "valkey+cluster": "redis",
    "valkeys+cluster": "rediss",
}
KNOWN_SCHEMES = (
    *("memory", "sqlite", "postgresql", "postgres", "redis", "rediss", "redis+unix", "valkey", "valkeys"),
    *_CLUSTER_SCHEMES,
)
_REDIS_SCHEMES = {  # ours → the driver's
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+unix": "unix",
    "unix": "unix",
}

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


class Address(Discreet, frozen=True):
    """A parsed and validated URL."""

    url: str  # as given, including its password
    scheme: str
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    safe_url: str = ""  # safe to show
    store_name: str = ""  # identifies the store: one spelling, without options that change only how it is used

    def __repr__(self) -> str:
        return f"Address({self.safe_url!r})"


def parse_url(url: str) -> Address:
    """Parse a URL; ConfigurationError explains what is wrong with it."""
    if not isinstance(url, str):
        raise ConfigurationError(f"the URL must be a str such as 'sqlite:///jobs.db', not {type(url).__name__}.")
    if any(ord(character) < 0x20 or 0xD800 <= ord(character) <= 0xDFFF for character in url):
        raise ConfigurationError("the URL has a control character or is not text. Remove it.")
    found = _SCHEME.match(url)
    if found is None:
        raise ConfigurationError("the URL has no scheme. Write sqlite:///jobs.db for a file, or memory://.")
    scheme = found[1].lower()
    if scheme not in KNOWN_SCHEMES and scheme not in _REDIS_SCHEMES:
        known = ", ".join(f"{name}://" for name in KNOWN_SCHEMES)
        raise ConfigurationError(f"no backend has the URL scheme {scheme}://.{_meant(scheme)} Known: {known}.")
    rest, _, query = url[found.end() :].partition("?")
    if scheme == "memory":
        if rest.strip("/") or query:
            raise ConfigurationError(
                "memory:// takes neither a name nor options. Each app has its own store in memory."
            )
        return Address(url, scheme, safe_url="memory://", store_name="memory://")
    if scheme == "sqlite":
        path = _sqlite_path(rest)
        options = _options(parse_qsl(query, keep_blank_values=True), _SQLITE_OPTIONS, scheme)
        name = f"sqlite:///{quote(shown_path(path), safe='/*@')}"
        return Address(url, scheme, path, options, safe_url=url if shown_path(rest) == rest else name, store_name=name)
    parts = split_server_url(scheme, url[found.end() :])
    if scheme in ("postgresql", "postgres"):
        return _postgres_address(url, scheme, parts)
    if scheme in _CLUSTER_SCHEMES:
        return _cluster_address(url, scheme, parts)
    return _redis_address(url, scheme, parts)


def _meant(scheme: str) -> str:
    """A suggestion for an unknown scheme: another library's, or a typo."""
    base = scheme.partition("+")[0]  # SQLAlchemy's dialect+driver
    if base != scheme and base in KNOWN_SCHEMES:
        return f" Write {base}://: the driver is Holdfast's own."
    near = difflib.get_close_matches(scheme, KNOWN_SCHEMES, n=1)
    return f" Did you mean {near[0]}://?" if near else ""


def _sqlite_path(rest: str) -> str:
    if not rest.startswith("/"):
        raise ConfigurationError(
            "a SQLite URL has three slashes before a relative path and four before an absolute one: "
            "sqlite:///jobs.db, sqlite:////var/lib/jobs.db."
        )
    path = unquote(rest[1:], errors="surrogateescape")
    if path in ("", ":memory:") or path.startswith("file:"):
        raise ConfigurationError("the SQLite URL names no file. Write sqlite:///jobs.db, or memory:// for no file.")
    if "\0" in path:
        raise ConfigurationError("the SQLite path has a NUL character. Remove it.")
    if path.endswith(("/", os.sep)):
        raise ConfigurationError("the SQLite path ends with a slash: a directory. Name a file in it.")
    return os.path.abspath(path)  # now, so that a later chdir cannot split the store in two


def _postgres_address(url: str, scheme: str, parts: ServerUrl) -> Address:
    options, theirs = _parted(parts, _POSTGRES_OPTIONS, "postgresql")
    return Address(
        url,
        "postgresql",
        theirs.driver_url("postgresql"),
        options,
        safe_url=parts.shown(scheme, _POSTGRES_OPTIONS),
        store_name=theirs.shown("postgresql", more=[f"schema={options.get('schema', 'holdfast')}"]),
    )


def _redis_address(url: str, scheme: str, parts: ServerUrl) -> Address:
    options, theirs = _parted(parts, _REDIS_OPTIONS, "redis")
    drivers = _REDIS_SCHEMES[scheme]
    if drivers == "unix":
        if parts.hosts or not parts.path:
            raise ConfigurationError("a Redis socket is named by its whole path: redis+unix:///run/redis.sock?db=0.")
    elif not re.fullmatch(r"[0-9]{0,5}", parts.path or ""):
        raise ConfigurationError("a Redis URL ends with the number of a database, or nothing: redis://host:6379/0.")
    return Address(
        url,
        "redis",
        theirs.driver_url(drivers),
        options,
        safe_url=parts.shown(scheme, _REDIS_OPTIONS),
        store_name=theirs.shown(drivers, more=[f"prefix={options.get('prefix', 'holdfast')}"]),
    )


def _cluster_address(url: str, scheme: str, parts: ServerUrl) -> Address:
    options, theirs = _parted(parts, _REDIS_OPTIONS, "redis+cluster")
    if not all(parts.hosts.split(",")):
        raise ConfigurationError(
            "a cluster's URL names one or more of its nodes: redis+cluster://h1:7000,h2:7000/?prefix=NAME."
        )
    if parts.path not in (None, "", "0"):
        raise ConfigurationError("a cluster has no numbered databases: end its URL after the nodes. Use ?prefix=NAME.")
    safe_url = parts.shown(scheme, _REDIS_OPTIONS)
    drivers = replace(theirs, path=None).driver_url(_CLUSTER_SCHEMES[scheme])
    return Address(url, "redis+cluster", drivers, options, safe_url=safe_url, store_name=safe_url)


def _parted(
    parts: ServerUrl, checks: Mapping[str, Callable[[str], Any]], scheme: str
) -> tuple[dict[str, Any], ServerUrl]:
    """Our options, validated, and the URL without them, for the driver."""
    ours = [(name, unquote_plus(value)) for name, value in parts.options if name in checks]
    return _options(ours, checks, scheme), parts.without(checks)


def _schema(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,47}", value):
        raise ConfigurationError(f"schema={value!r} is not a name for a schema: letters, digits and _, at most 48.")
    return value


def _count(value: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,2}", value):
        raise ConfigurationError(f"connections={value!r} is not a whole number from 1 to 999.")
    return int(value)


def _replicas(value: str) -> int:
    if not re.fullmatch(r"[0-9]", value):
        raise ConfigurationError(f"wait={value!r} is not a number of replicas from 0 to 9.")
    return int(value)


def _synchronous(value: str) -> str:
    level = value.upper()
    if level not in ("FULL", "NORMAL", "EXTRA"):
        raise ConfigurationError(f"synchronous={value!r} is not one of FULL, EXTRA, NORMAL.")
    return level


def _positive(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 86400.0:
        raise ConfigurationError(f"call_timeout={value!r} is not a number of seconds above 0.")
    return number


def _yes_or_no(name: str) -> Callable[[str], bool]:
    choices = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

    def check(value: str) -> bool:
        if value.lower() not in choices:
            raise ConfigurationError(f"{name}={value!r} is neither true nor false.")
        return choices[value.lower()]

    return check


def _prefix(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:\-/]{1,100}", value):
        raise ConfigurationError(
            f"prefix={value!r} is not a prefix for keys: use letters, digits and _ . : - /, at most 100."
        )
    return value


_SQLITE_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "synchronous": _synchronous,
    "call_timeout": _positive,
    "share": _yes_or_no("share"),
}
_POSTGRES_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "schema": _schema,
    "call_timeout": _positive,
    "connections": _count,
    "pooled": _yes_or_no("pooled"),
}
_REDIS_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "prefix": _prefix,
    "call_timeout": _positive,
    "connections": _count,
    "allow_eviction": _yes_or_no("allow_eviction"),
    "allow_no_aof": _yes_or_no("allow_no_aof"),
    "trust_restarts": _yes_or_no("trust_restarts"),
    "wait": _replicas,
}


def _options(
    pairs: Iterable[tuple[str, str]], checks: Mapping[str, Callable[[str], Any]], scheme: str
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in pairs:
        if name not in checks:
            raise ConfigurationError(f"{scheme}:// has no option {name!r}. Options: {', '.join(sorted(checks))}.")
        options[name] = checks[name](value)
    return options


def open_backend(url: str, *, clock: Clock | None = None, **options: Any) -> Backend:
    """Create the store for a URL without opening it. Keyword options override those in the URL."""
    return make_backend(parse_url(url), clock=clock, **options)


def make_backend(address: Address, *, clock: Clock | None = None, **options: Any) -> Backend:
    """Like `open_backend`, for a parsed URL."""
    with uncollected():
        return _make_backend(address, clock=clock, **options)


def _make_backend(address: Address, *, clock: Clock | None, **options: Any) -> Backend:
    timing: dict[str, Any] = {} if clock is None else {"clock": clock}
    if address.scheme == "memory":
        from .sqlite.memory import MemoryBackend

        return MemoryBackend(**timing)
    if address.scheme == "postgresql":
        return _postgres_class()(address.path, **{**address.options, **options, **timing})
    if address.scheme == "redis+cluster":
        return _cluster_class()(address.path, **{**address.options, **options, **timing})
    if address.scheme == "redis":
        return _redis_class()(address.path, **{**address.options, **options, **timing})
    from .sqlite.backend import SqliteBackend

    return SqliteBackend(address.path, **{**address.options, **options, **timing})


def preload(scheme: str) -> None:
    """Import the store of a URL scheme, with its driver, in advance; an unknown scheme is ignored."""
    if scheme.startswith("sqlite"):
        from .sqlite import backend, claim, renew  # noqa: F401
    elif scheme.startswith("postgres"):
        _postgres_class()
    elif scheme in _CLUSTER_SCHEMES:
        _cluster_class()
    elif scheme.startswith(("redis", "valkey")):
        _redis_class()


def _postgres_class() -> Callable[..., Backend]:
    if importlib.util.find_spec("psycopg") is None:
        raise BackendNotInstalled("postgresql", "Install its driver: pip install 'holdfast[postgres]'.")
    from .postgres.backend import PostgresBackend

    return PostgresBackend


def _redis_class() -> Callable[..., Backend]:
    _need_redis("redis")
    from .redis.backend import RedisBackend

    return RedisBackend


def _cluster_class() -> Callable[..., Backend]:
    _need_redis("redis+cluster")
    from .redis.cluster import ClusterBackend

    return ClusterBackend


def _need_redis(scheme: str) -> None:
    if importlib.util.find_spec("redis") is None or importlib.util.find_spec("hiredis") is None:
        raise BackendNotInstalled(scheme, "Install its driver: pip install 'holdfast[redis]'.")
