"""URLs: taken apart without I/O, refused with a next step, never shown with a password."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from holdfast.backends import open_backend, parse_url
from holdfast.backends.redis.cluster import ClusterBackend
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.errors import ConfigurationError


def test_relative_and_absolute_files() -> None:
    assert parse_url("sqlite:///jobs.db").path == os.path.abspath("jobs.db")
    assert parse_url("sqlite:////var/lib/jobs.db").path == "/var/lib/jobs.db"
    assert parse_url("SQLITE:////a%20b/j%3F.db").path == "/a b/j?.db"
    assert parse_url("memory://").scheme == "memory"


def test_a_relative_path_is_settled_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = parse_url("sqlite:///jobs.db")
    before = address.path
    monkeypatch.chdir(tmp_path)
    assert address.path == before


def test_a_store_has_one_name_however_it_is_used() -> None:
    name = parse_url("sqlite:///a b.db?synchronous=normal").store_name
    assert name == parse_url("sqlite:///./a%20b.db").store_name
    assert parse_url(name).path == os.path.abspath("a b.db")
    one = parse_url("postgres://bob:hush@host/db?connections=2&sslmode=require").store_name
    assert one == parse_url("postgresql://bob:other@host/db?sslmode=require&schema=holdfast&call_timeout=3").store_name
    assert "hush" not in one
    assert one != parse_url("postgresql://bob:hush@host/db?sslmode=require&schema=other").store_name


def test_query_options_are_checked() -> None:
    address = parse_url("sqlite:///a.db?synchronous=normal&call_timeout=2.5&share=true")
    assert address.options == {"synchronous": "NORMAL", "call_timeout": 2.5, "share": True}


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a.db?synchronous=OFF",
        "sqlite:///a.db?colour=red",
        "sqlite:///a.db?share=perhaps",
        "sqlite:///a.db?call_timeout=soon",
        "sqlite:///a.db?call_timeout=-1",
        "sqlite://",
        "sqlite:///",
        "sqlite://a.db",
        "sqlite:///:memory:",
        "sqlite:///dir/",
        "sqlite:///a%00b",
        "sqlite:///a\nb",
        "sqlite:///\ud800",
        "memory://name",
        "memory://?a=b",
        "jobs.db",
        "",
        "mysql://host/db",
        "://x",
        "redis://host/jobs",
        "redis://host/0?prefix=a{b}",
        "redis://host/0?prefix=",
        "redis://host/0?allow_no_aof=perhaps",
        "redis://host/0?connections=0",
        "redis+unix://run/redis.sock",
        "redis+unix://",
        "redis+cluster://",
        "redis+cluster://h1:7000,,h2:7000",
        "redis+cluster://h1:7000/3",
        "redis+cluster://h1:7000/?prefix={a}",
    ],
)
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_url(url)


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="memory://, sqlite://"):
        parse_url("mongodb://host")


@pytest.mark.parametrize(
    ("url", "drivers"),
    [
        ("redis+cluster://u:hunter2@h1:7000,h2:7001/?prefix=jobs", "redis://u:hunter2@h1:7000,h2:7001"),
        ("rediss+cluster://h1,[::1]:7001?ssl_cert_reqs=none", "rediss://h1,[::1]:7001?ssl_cert_reqs=none"),
        ("valkey+cluster://h1/0", "redis://h1"),
        ("valkeys+cluster://h1", "rediss://h1"),
    ],
)
def test_a_clusters_url_names_several_nodes(url: str, drivers: str) -> None:
    address = parse_url(url)
    assert (address.scheme, address.path) == ("redis+cluster", drivers)
    assert "hunter2" not in repr(address)
    assert isinstance(open_backend(url), ClusterBackend)  # made, and connected to nothing


@pytest.mark.parametrize(
    ("url", "drivers"),
    [
        ("redis://u:hunter2@host:6380/2", "redis://u:hunter2@host:6380/2"),
        ("valkey://host", "redis://host"),
        ("rediss://host/1?ssl_cert_reqs=none", "rediss://host/1?ssl_cert_reqs=none"),
        ("valkeys://host?prefix=jobs", "rediss://host"),
        ("redis+unix:///run/redis.sock?db=3", "unix:///run/redis.sock?db=3"),
        ("unix:///run/redis.sock?prefix=jobs&db=3", "unix:///run/redis.sock?db=3"),
    ],
)
def test_redis_urls_are_handed_to_the_driver_without_what_is_ours(url: str, drivers: str) -> None:
    address = parse_url(url)
    assert (address.scheme, address.path) == ("redis", drivers)
    assert "hunter2" not in repr(address)


def test_redis_options_are_checked() -> None:
    allowed = "allow_eviction=true&allow_no_aof=no&trust_restarts=yes"
    address = parse_url(f"redis://h/0?prefix=a.b:c&call_timeout=2&connections=3&{allowed}")
    expected = {"prefix": "a.b:c", "call_timeout": 2.0, "connections": 3}
    expected |= {"allow_eviction": True, "allow_no_aof": False, "trust_restarts": True}
    assert address.options == expected


def test_something_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="PosixPath"):
        parse_url(Path("jobs.db"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hunter2@host/0", "redis://user:***@host/0"),
        ("redis://:hunter2@host", "redis://:***@host"),
        ("redis://hunter2@host", "redis://***@host"),
        ("postgres://bob@host/db", "postgres://bob@host/db"),
        ("postgresql://u:p#s?w@host/db", "postgresql://u:***@host/db"),
        ("postgresql://host/db?password=hunter2&sslmode=require", "postgresql://host/db?password=***&sslmode=require"),
        ("postgresql://h/db?options=-c%20a%3Dhunter2&schema=s", "postgresql://h/db?options=***&schema=s"),
        (
            "redis+cluster://:hunter2@h1:1,h2:2/?ssl_password=hunter2",
            "redis+cluster://:***@h1:1,h2:2/?ssl_password=***",
        ),
        ("rediss://host/0?colour=hunter2", "rediss://host/0?colour=***"),
        ("rediss://host/0?password=a&hunter2=b", "rediss://host/0?password=***&***"),
        ("sqlite:////u:hunter2@h/x.db", "sqlite:////***@h/x.db"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
    ],
)
def test_passwords_and_unlisted_options_are_not_shown(url: str, shown: str) -> None:
    assert parse_url(url).safe_url == shown


@pytest.mark.parametrize(
    ("url", "drivers"),
    [
        ("postgresql://u:p#s?w@host/db", "postgresql://u:p%23s%3Fw@host/db"),
        ("redis://u:p%zz[@host/0", "redis://u:p%25zz%5B@host/0"),
        ("redis://host/0?password=a%40b==", "redis://host/0?password=a%40b=="),
    ],
)
def test_the_driver_gets_a_url_it_cannot_read_otherwise(url: str, drivers: str) -> None:
    assert parse_url(url).path == drivers


@pytest.mark.parametrize(
    "rest",
    [
        "u:hunter2@hunter2@h/db",
        "u:a/hunter2@h/db",
        "h/db@hunter2",
        "h/db?user=u@hunter2",
        "u:hunter2@[::1/db",
        "u:x@h:hunter2/db",
        "u:x@h:65536/db",
        "u:x@h/db#hunter2",
        "h/db?hunter2",
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "redis", "redis+cluster"])
def test_what_can_be_read_in_two_ways_is_refused_and_only_its_scheme_shown(scheme: str, rest: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the {re.escape(scheme)}:// URL cannot be parsed: .*%40") as caught:
        parse_url(f"{scheme}://{rest}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["mysql://u:hunter2@h/d", "redis://u:hunter2@h/x", "u:hunter2@h", "sqlite://u:hunter2@h/x"]
)
def test_no_refusal_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


def test_open_backend_makes_the_store_it_names(tmp_path: Path) -> None:
    assert isinstance(open_backend("memory://"), MemoryBackend)
    backend = open_backend(f"sqlite:///{tmp_path}/deep/jobs.db".replace("////", "///"), synchronous="NORMAL")
    assert isinstance(backend, SqliteBackend)
    assert list(tmp_path.iterdir()) == []
