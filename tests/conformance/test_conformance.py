"""Every conformance case on every backend that ships and on the reference: none differs in what a case can see."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from _pytest.mark import ParameterSet

from holdfast.backends.contract import Backend, Reader
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.testing.conformance import CASES, THEMES, MakeBackend, run_case

from ..reference.backend import ReferenceBackend
from ..servers import postgres, sqlite, valkey
from .lines import LATER_LINES, RIVAL_CASES, TURNS


def _reference() -> Callable[[str], Backend]:
    stores: dict[str, Backend] = {}
    return lambda store: stores.setdefault(store, ReferenceBackend())


def _memory() -> Callable[[str], Backend]:
    stores: dict[str, Backend] = {}
    return lambda store: stores.setdefault(store, MemoryBackend())


STORES: dict[str, Callable[[], MakeBackend]] = {
    "reference": _reference,
    "memory": _memory,
    "sqlite": sqlite.fresh_stores,
    "postgres": postgres.fresh_stores,
    "redis": valkey.fresh_stores,
}


def _runs() -> Iterator[ParameterSet]:
    """The store in memory has its verbs from the SQLite store, statement for statement. Its own are the lock, its
    databases and the way to wait, which the rivals' cases need. What else runs on it in `./check --fast` repeats the
    SQLite store's cases, which the whole run has. `./check --python` has the first line of each table. On SQLite every
    run has all lines, and so has memory where it repeats them; on the others later lines take turns."""
    for store in STORES:
        for case in CASES:
            repeated = [pytest.mark.repeat] if store == "memory" and case not in RIVAL_CASES else []
            later = [pytest.mark.later_line] if case in LATER_LINES else []
            turn = [pytest.mark.turn] if case in TURNS and store != "sqlite" and not repeated else []
            yield pytest.param(store, case, marks=repeated + later + turn, id=f"{store}-{case}")


@pytest.mark.parametrize(("store", "case"), list(_runs()))
def test_case(store: str, case: str) -> None:
    run_case(case, STORES[store]())


def test_the_store_in_memory_has_its_verbs_from_sqlite() -> None:
    """So a case that passes on SQLite's file repeats itself in memory. A verb written twice is no repetition."""
    verbs = [name for name in {**vars(Reader), **vars(Backend)} if not name.startswith("_")]
    own = {name for name in verbs if getattr(SqliteBackend, name, None) is not getattr(MemoryBackend, name, None)}
    by_hand = {"open", "open_here", "close", "close_here", "migrate", "wait_for_work"}
    by_hand |= {"flaws", "shares_database"}  # of a file
    calling = {"enqueue_here", "enqueue_on", "aenqueue_on", "settle_on", "asettle_on", "exchange"}  # from another place
    assert own <= by_hand | calling | {"scheme", "durable", "any_loop"}


FULL_SIZE = [
    "ten_cycles_of_a_hundred_poison_jobs_are_never_more_than_a_hundred",
    "ten_thousand_waiting_jobs_of_a_blocked_group_hide_nobody",
    "a_tenant_is_served_beside_ten_thousand_jobs_under_any_limit",  # A has 100,000 here
]


# The size is a promise of stores that ship. The store in memory reads by SQLite's statements and indexes, and nobody
# gives the reference 100,000 jobs.
SIZED = [
    *(pytest.param(store, marks=pytest.mark.repeat) for store in ("reference", "memory")),
    *("sqlite", "postgres", "redis"),
]


@pytest.mark.turn
@pytest.mark.timeout(900)  # minutes on a busy machine
@pytest.mark.parametrize("case", FULL_SIZE)
@pytest.mark.parametrize("store", SIZED)
def test_case_ten_times_as_large(case: str, store: str) -> None:
    run_case(case, STORES[store](), scale=10.0)


def test_every_theme_brings_cases() -> None:
    silent = [theme.__name__ for theme in THEMES if not any(hasattr(theme, name.split("[")[0]) for name in CASES)]
    assert not silent


def test_the_suite_needs_no_pytest() -> None:
    loaded = [name for theme in THEMES for name in vars(sys.modules[theme.__name__])]
    assert "pytest" not in loaded
