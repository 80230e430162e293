"""Every conformance case on every backend that ships and on the reference: none differs in what a case can see."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.backends.contract import Backend
from holdfast.testing.conformance import CASES, THEMES, run_case

from ..reference.backend import ReferenceBackend
from ..servers import postgres, sqlite, valkey


def _reference(tmp_path: Path) -> Callable[[str], Backend]:
    stores: dict[str, Backend] = {}
    return lambda store: stores.setdefault(store, ReferenceBackend())


def _memory(tmp_path: Path) -> Callable[[str], Backend]:
    module = importlib.import_module("holdfast.backends.memory.backend")
    stores: dict[str, Backend] = {}
    return lambda store: stores.setdefault(store, module.MemoryBackend())


def _sqlite(tmp_path: Path) -> Callable[[str], Backend]:
    return lambda store: sqlite.store_at(tmp_path / f"{store}.db")


def _postgres(tmp_path: Path) -> Callable[[str], Backend]:
    return postgres.fresh_stores()


def _redis(tmp_path: Path) -> Callable[[str], Backend]:
    return valkey.fresh_stores()


STORES = {"reference": _reference, "memory": _memory, "sqlite": _sqlite, "postgres": _postgres, "redis": _redis}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("store", STORES)
def test_case(case: str, store: str, tmp_path: Path) -> None:
    run_case(case, STORES[store](tmp_path))


FULL_SIZE = [
    "ten_cycles_of_a_hundred_poison_jobs_are_never_more_than_a_hundred",
    "ten_thousand_waiting_jobs_of_a_blocked_group_hide_nobody",
    *(name for name in CASES if name.startswith("a_tenant_")),  # A has 100,000 jobs
]


@pytest.mark.parametrize("case", FULL_SIZE)
@pytest.mark.parametrize("store", STORES)
def test_case_ten_times_as_large(case: str, store: str, tmp_path: Path) -> None:
    run_case(case, STORES[store](tmp_path), scale=10.0)


def test_every_theme_brings_cases() -> None:
    silent = [theme.__name__ for theme in THEMES if not any(hasattr(theme, name.split("[")[0]) for name in CASES)]
    assert not silent


def test_the_suite_needs_no_pytest() -> None:
    loaded = [name for theme in THEMES for name in vars(sys.modules[theme.__name__])]
    assert "pytest" not in loaded
