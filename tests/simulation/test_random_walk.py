"""Random walks of all verbs on each store beside the model, and on the reference and each store beside it.

PostgreSQL walks beside the model alone: conformance/test_stores_walk_alike.py compares it with the reference on walks
of its own, and test_walks_find.py beside that shows what these find. HOLDFAST_SIMULATION_EXAMPLES raises the number of
walks; what a commit runs is the same every time, another third of the walks with each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.backends.contract import Backend
from holdfast.backends.sqlite.memory import MemoryBackend

from ..reference.backend import ReferenceBackend
from ..servers import postgres as postgres_servers
from ..servers import sqlite as sqlite_files
from ..servers import valkey
from ..turns import TURNS
from .walk import Walk

EXAMPLES = int(os.environ.get("HOLDFAST_SIMULATION_EXAMPLES", "60"))
SETTINGS = settings(
    max_examples=EXAMPLES // TURNS,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

pytestmark = pytest.mark.timeout(600)  # thousands of calls; on a busy machine they take their time


def reference(_: Path) -> Backend:
    return ReferenceBackend()


def memory(_: Path) -> Backend:
    return MemoryBackend()


def sqlite(path: Path) -> Backend:
    return sqlite_files.store_at(path.with_suffix(".db"))


def postgres(path: Path) -> Backend:
    return postgres_servers.fresh_stores()(path.name)


def redis(path: Path) -> Backend:
    return valkey.fresh_stores()(path.name)


def postgres_planning_oddly(path: Path) -> Backend:
    """What statistics and costs may bring about one day: rows joined and read in another order than usual."""
    odd = ("enable_nestloop=off", "enable_indexscan=off", "enable_indexonlyscan=off", "enable_bitmapscan=off")
    return postgres_servers.fresh_stores(*odd)(path.name)


class OnReference(Walk):
    makers = (reference,)


class ReferenceBesideMemory(Walk):
    """Which has its verbs from SQLite's store, statement for statement; the whole run has that beside the reference."""

    makers = (reference, memory)


class OnSqlite(Walk):
    makers = (sqlite,)


class ReferenceBesideSqlite(Walk):
    makers = (reference, sqlite)


class OnPostgres(Walk):
    makers = (postgres,)


class OnPostgresPlanningOddly(Walk):
    makers = (postgres_planning_oddly,)


class OnRedis(Walk):
    makers = (redis,)


class ReferenceBesideRedis(Walk):
    makers = (reference, redis)


WALKS = [
    *(OnReference, OnSqlite, OnPostgres, OnPostgresPlanningOddly, OnRedis, ReferenceBesideSqlite, ReferenceBesideRedis),
    pytest.param(ReferenceBesideMemory, marks=pytest.mark.repeat),
]


@pytest.mark.parametrize("part", range(TURNS))
@pytest.mark.parametrize("kind", WALKS, ids=lambda kind: kind.__name__)
def test_every_verb_from_every_state(kind: type[Walk], part: int) -> None:
    """A part of the walks: the number of the part is their seed."""
    run_state_machine_as_test(seed(part)(type(kind.__name__, (kind,), {})), settings=SETTINGS)
