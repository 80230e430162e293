"""The setting `HOLDFAST = {…}`: its keys, and the store's URL when the jobs live in one of Django's databases.

Read by the app when it is made, and again when tests change the setting. Opens no connection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..errors import ConfigurationError
from ..names import nearest

KEYS = ("URL", "DATABASE", "IMPORTS", "TASKS_MODULE", "ARGS_BYTES_MAX", "RESULT_BYTES_MAX", "DASHBOARD_URL")
_LIBPQ_IGNORED = {"isolation_level", "pool", "server_side_binding", "assume_role", "cursor_factory", "context"}


@dataclass(frozen=True, slots=True)
class Configuration:
    """`settings.HOLDFAST`, checked."""

    url: str | None  # as given; None: HOLDFAST_URL, unless the jobs live in Django's database
    database: str  # the alias whose transactions enqueue follows
    in_database: bool  # DATABASE without URL: the jobs live in that database
    tasks_module: str | None
    dashboard_url: str | None
    options: Mapping[str, Any]  # the other arguments of Holdfast()


def read() -> Configuration:
    """The checked setting; ConfigurationError for an unknown key or a value of the wrong kind."""
    try:
        given = getattr(settings, "HOLDFAST", {})
    except ImproperlyConfigured as error:
        raise ConfigurationError(
            "Django has no settings here. Set DJANGO_SETTINGS_MODULE, such as shop.settings, or run it by manage.py."
        ) from error
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'the setting HOLDFAST must be a dict such as {{"URL": "…"}}, not a {type(given).__name__}.'
        )
    for key in given:
        if key not in KEYS:
            raise ConfigurationError(
                f"the setting HOLDFAST has no key {key!r}.{nearest(str(key).upper(), KEYS)} Keys: {', '.join(KEYS)}."
            )
    url, database = _text(given, "URL"), _text(given, "DATABASE")
    if database is not None and database not in settings.DATABASES:
        known = ", ".join(sorted(settings.DATABASES))
        raise ConfigurationError(f"the setting HOLDFAST names the database {database!r}. DATABASES has: {known}.")
    names = {"IMPORTS": "imports", "ARGS_BYTES_MAX": "args_bytes_max", "RESULT_BYTES_MAX": "result_bytes_max"}
    return Configuration(
        url=url,
        database=database or "default",
        in_database=url is None and database is not None,
        tasks_module=_text(given, "TASKS_MODULE") if "TASKS_MODULE" in given else "tasks",
        dashboard_url=_text(given, "DASHBOARD_URL"),
        options={name: given[key] for key, name in names.items() if key in given},
    )


def _text(given: Mapping[str, Any], key: str) -> str | None:
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigurationError(f"the setting HOLDFAST has {key}={value!r:.60}. Give a text, or leave it out.")
    return value


def database_url(alias: str) -> str:
    """The URL of the store inside one of Django's databases, as it is named at this moment.

    Django's test runner renames databases. One in memory cannot be shared, so the store is then memory://.
    """
    database = settings.DATABASES[alias]
    engine = str(database.get("ENGINE", ""))
    name = os.fspath(database.get("NAME") or "")
    if "sqlite" in engine or "spatialite" in engine:
        if name in ("", ":memory:") or name.startswith("file:"):
            return "memory://"
        return f"sqlite:///{quote(os.path.abspath(name))}?share=true"
    if "postg" in engine:
        return _postgres_url(database, name)
    raise ConfigurationError(
        f"the setting HOLDFAST keeps jobs in the database {alias!r}, whose engine is {engine or 'missing'}. That works "
        "with PostgreSQL and SQLite; otherwise set URL to a store."
    )


def _postgres_url(database: Mapping[str, Any], name: str) -> str:
    user, password = (quote(str(database.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    more = {
        key: str(value)
        for key, value in (database.get("OPTIONS") or {}).items()
        if key not in _LIBPQ_IGNORED and isinstance(value, str | int)
    }
    host = str(database.get("HOST") or "")
    port = str(database.get("PORT") or "")
    if host.startswith("/"):  # a socket's folder is no host of a URL
        more |= {"host": host, **({"port": port} if port else {})}
        host = port = ""
    query = f"?{urlencode(more, quote_via=quote)}" if more else ""
    return f"postgresql://{login}{host}{f':{port}' if port else ''}/{quote(name, safe='')}{query}"
