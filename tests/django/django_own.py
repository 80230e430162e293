"""What stands in for Django's own backends in its own tests of tasks; test_django_own.py copies it beside them.

`Stored` takes the place of Django's dummy backend: nothing runs. `Drained` takes that of its immediate backend: a
worker runs everything before enqueue returns.
"""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.django import TasksBackend, app


class Stored(TasksBackend):
    """With what the tests of Django's dummy backend use of it."""

    @property
    def results(self) -> list[Any]:
        found = app._store.call(lambda backend: backend.find(_EVERYTHING))
        return [self._read(record, record.id) for record in reversed(found)]

    def clear(self) -> None:
        app.bulk("delete", "")


class Drained(TasksBackend):
    """Each task has run when enqueue returns."""

    default_options: ClassVar[dict[str, Any]] = {"retry": 0}

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        app.work(drain=True)
        result.refresh()
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = await super().aenqueue(task, args, kwargs)
        await app.awork(drain=True)
        await result.arefresh()
        return result


def _everything() -> Any:
    from holdfast.records import JobQuery

    return JobQuery(limit=10_000)


_EVERYTHING = _everything()
