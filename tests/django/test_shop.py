"""The shop of examples/django-shop: its own tests, and a worker whose database drops every connection."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from holdfast import Holdfast

from ..servers.postgres import shared_server

SHOP = Path(__file__).parents[2] / "examples" / "django-shop"
PATIENCE = 120.0


def manage(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=SHOP,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def done(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture
def database() -> Iterator[str]:
    """A database of its own on the run's server."""
    name = f"shop_{os.getpid()}"
    with psycopg.connect(shared_server().conninfo, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}")
        yield name
        session.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_its_own_tests_pass(tmp_path: Path) -> None:
    assert "OK" in done(manage("test", "--noinput", SHOP_SQLITE=str(tmp_path / "shop.db")))
    assert not (tmp_path / "shop.db").exists()


def test_it_is_migrated_worked_and_looked_at_by_manage_py(tmp_path: Path) -> None:
    shop = {"SHOP_SQLITE": str(tmp_path / "shop.db")}
    done(manage("migrate", **shop))
    assert "No changes detected" in done(manage("makemigrations", "--check", "--dry-run", **shop))
    script = """
from django.test import Client
print(Client().post("/orders/", {"email": "ann@example.com", "total": "12.50"}).status_code)
"""
    assert "201" in done(manage("shell", "-v", "0", "-c", script, **shop))
    assert "orders.tasks.charge" in done(manage("holdfast", "jobs", "state:scheduled", "--json", **shop))
    shown = done(manage("holdfast", "work", "--drain", "--runners", "1", "--settings", "shop.settings", **shop))
    assert "2 succeeded" in shown
    assert "We received 12.50 EUR." in shown
    assert manage("holdfast", "job", "nobody", **shop).returncode == 3
    assert "forget_unpaid" in done(manage("holdfast", "cron", "ls", "--json", **shop))
    direct = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "work", "holdfast.django:app", "--drain", "--runners", "1"],
        cwd=SHOP, env={**os.environ, **shop, "DJANGO_SETTINGS_MODULE": "shop.settings"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "0 succeeded" in done(direct)


@contextlib.contextmanager
def worker(**environment: str) -> Iterator[None]:
    command = [sys.executable, "manage.py", "holdfast", "work", "--runners", "1", "--slots", "4"]
    process = subprocess.Popen(
        command, cwd=SHOP, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_jobs_succeed_after_the_database_dropped_every_connection_of_their_threads(database: str) -> None:
    """CONN_MAX_AGE keeps the connections of handlers' threads: nobody tells Django that they are gone."""
    host = str(shared_server().home)
    shop = {"SHOP_POSTGRES_HOST": host, "SHOP_POSTGRES_NAME": database}
    done(manage("migrate", **shop))
    address = f"postgresql://postgres@/{database}?host={quote(host, safe='')}"
    with psycopg.connect(address, autocommit=True) as session, Holdfast(address) as app, worker(**shop):
        session.execute("INSERT INTO orders_order (email, total, state, placed_at) VALUES ('a@b.c', 1, 'paid', now())")
        confirm = app.named("orders.tasks.confirm", queue="mail")
        for _ in range(2):
            jobs = [confirm.using(group=None).enqueue(order=1) for _ in range(20)]
            assert [job.result(PATIENCE) for job in jobs] == [1] * 20
            assert {job.refresh().attempts for job in jobs} == {1}
            killed = session.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                "WHERE datname = %s AND pid <> pg_backend_pid() AND query LIKE '%%orders_order%%'",
                (database,),
            ).fetchall()
            assert killed and all(ended for (ended,) in killed), "no handler's connection was idle"
