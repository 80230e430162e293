"""A worker's name and its timeout for tasks that have none."""

from __future__ import annotations

import pytest
from tests.worker.worker_bench import WorkerApp

from holdfast import Call
from holdfast.errors import ConfigurationError
from holdfast.options import TaskOptions, WorkerOptions
from holdfast.worker_status import read


async def test_a_name_is_published_with_the_workers_status(memory_app: WorkerApp) -> None:
    @memory_app.task(name="any", batch=7)
    async def any_(calls: list[Call[dict[str, object]]]) -> None: ...

    worker = memory_app.worker(name="mailer 1", renew_every=0.1, lease=30.0)
    async with worker:
        store = await memory_app.store()
        status = None
        while status is None:
            [record] = await store.workers()
            status = read(record.portrait)
    assert (status.name, status.batches) == ("mailer 1", {"any": 7})


def test_a_name_is_checked() -> None:
    assert WorkerOptions().name == ""
    with pytest.raises(ConfigurationError, match="worker name"):
        WorkerOptions(name="a\nb")


def test_a_workers_timeout_is_for_tasks_without_their_own() -> None:
    assert TaskOptions().within(5.0).timeout == 5.0
    assert TaskOptions(timeout=60.0).within(5.0).timeout == 60.0
