"""Imports that wait for their first use, so that a producer pays only for what it uses, and without collections.

Called by modules that every producer loads, for what most of them never need: asyncio on SQLite, cron, the operator's
verbs. Such a module imports the names for the type checker and calls `import_lazily` otherwise. Knows no other module.

What is imported stays, so looking for garbage in it is time lost: a seventh of a producer's start. `uncollected` spares
a tree of modules that.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, unless it is off already; for imports, which take milliseconds.

    At the end all objects are old: otherwise the next collection would walk through all that was imported. They are
    frozen and thawed for that, which moves whole lists; not if the program keeps frozen objects, which would thaw, too.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


class _Pending:
    """Stands in a module's namespace for another module, and puts that one in its place when it is first used."""

    __slots__ = ("_load",)

    def __init__(self, namespace: MutableMapping[str, Any], name: str, home: str) -> None:
        def load() -> Any:
            with uncollected():
                namespace[name] = import_module(home, namespace["__package__"])
            return namespace[name]

        self._load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)


def import_lazily(namespace: MutableMapping[str, Any], *modules: str, **renamed: str) -> None:
    """Let modules be imported into this namespace when they are first used; `.name` is one beside the caller."""
    for name, home in [*((home.rpartition(".")[2], home) for home in modules), *renamed.items()]:
        namespace[name] = _Pending(namespace, name, home)
