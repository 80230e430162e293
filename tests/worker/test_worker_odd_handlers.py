"""Odd ends of an attempt: each leads to an outcome and affects no other job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp

from holdfast import Call, Failed
from holdfast.context import Bury, CancelRequested, Context, Retry, Snooze
from holdfast.lifecycle import State
from holdfast.retry import RetryPolicy

NOT_TEXT = "no such file: caf\udce9.txt"  # what os.fsdecode makes of a name that is not UTF-8


class Unspeakable(Exception):
    """Printing it would end a program."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Loud(str):
    """Text of a class of its own."""

    __slots__ = ()


@dataclass
class Nothing:
    """The arguments of a job without any."""


class Later(Snooze):
    """It forgets to call its base class."""

    def __init__(self) -> None:
        self.why = "later"


class Sooner(Retry):
    def __init__(self) -> None:
        self.why = "sooner"


class Never(Bury):
    def __init__(self) -> None:
        self.why = "never"


class Faulty(OSError):
    @property
    def errno(self) -> int:  # type: ignore[override]
        raise SystemExit(3)


class SomeFailed(Failed):
    def __init__(self) -> None:
        self.why = "some"


def give_up(failures: int, error: BaseException | None) -> float:
    raise SystemExit(3)


def odd(kind: str) -> BaseException:
    if kind == "bury with an exception":
        return Bury(ValueError("because"))  # type: ignore[arg-type]
    if kind == "retry because of the unspeakable":
        verdict = Retry()
        verdict.__cause__ = Unspeakable()
        return verdict
    kinds: dict[str, BaseException] = {
        "surrogates": ValueError(NOT_TEXT),
        "bury with surrogates": Bury(NOT_TEXT),
        "unspeakable": Unspeakable(),
        "text of its own class": ValueError(Loud("loud")),
        "cancelled by nobody": CancelRequested(),
        "snooze without seconds": Later(),
        "retry without a delay": Sooner(),
        "bury without a reason": Never(),
        "number that cannot be read": Faulty(),
        "class with surrogates": type("Caf\udce9", (Exception,), {})("x"),
    }
    return kinds[kind]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        "surrogates",
        "bury with surrogates",
        "bury with an exception",
        "unspeakable",
        "retry because of the unspeakable",
        "text of its own class",
        "cancelled by nobody",
        "class with surrogates",
        "snooze without seconds",
        "retry without a delay",
        "bury without a reason",
        "number that cannot be read",
    ],
)
async def test_an_odd_end_is_one_dead_letter_and_the_neighbours_succeed(app: WorkerApp, kind: str, sync: bool) -> None:
    if sync:

        @app.task(name="odd", retry=0)
        def fails() -> None:
            raise odd(kind)
    else:

        @app.task(name="odd", retry=0)
        async def fails() -> None:
            raise odd(kind)

    @app.task(name="plain")
    async def plain() -> int:
        return 1

    bad, *good = await app.put(fails.bind(), plain.bind(), plain.bind())
    drained = await app.drain(slots=3)
    assert (drained.succeeded, drained.failed, drained.left) == (2, 1, 0)
    job = await app.job(bad)
    assert job.state is State.DEAD and len(job.errors) == 1
    failure = job.errors[0]
    (failure.text + failure.traceback + failure.type).encode()  # what is kept can be shown and sent anywhere
    for job_id in good:
        assert (await app.job(job_id)).state is State.SUCCEEDED


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("error", [Later, SomeFailed])
async def test_an_odd_end_of_a_batch_is_one_dead_letter_for_each_of_its_jobs(
    app: WorkerApp, error: type[BaseException], sync: bool
) -> None:
    if sync:

        @app.task(name="odd", retry=0, max_stalls=0, batch=2, batch_of=Nothing)
        def fails(calls: list[Call[Nothing]]) -> None:
            raise error
    else:

        @app.task(name="odd", retry=0, max_stalls=0, batch=2, batch_of=Nothing)
        async def fails(calls: list[Call[Nothing]]) -> None:
            raise error

    bad = await app.put(fails.bind(), fails.bind())
    drained = await app.drain(slots=3)
    assert (drained.succeeded, drained.failed, drained.left) == (0, 2, 0)
    for job_id in bad:
        job = await app.job(job_id)
        assert job.state is State.DEAD and len(job.errors) == 1


@pytest.mark.parametrize("sync", [False, True])
async def test_a_back_off_that_would_end_a_program_costs_a_failure_and_a_wait(app: WorkerApp, sync: bool) -> None:
    policy = RetryPolicy.custom(give_up)
    if sync:

        @app.task(name="fails", retry=policy)
        def fails() -> None:
            raise ValueError
    else:

        @app.task(name="fails", retry=policy)
        async def fails() -> None:
            raise ValueError

    (job_id,) = await app.put(fails.bind())
    drained = await app.drain()
    assert (drained.failed, drained.left) == (1, 1)
    job = await app.job(job_id)
    assert (job.state, job.failures) == (State.SCHEDULED, 1)


@pytest.mark.parametrize("sync", [False, True])
async def test_a_value_whose_own_code_would_end_a_program_is_a_failure(app: WorkerApp, sync: bool) -> None:
    def spoil(task: Any) -> None:
        def encode(value: object) -> bytes:
            raise SystemExit(3)

        task._encode = encode

    if sync:

        @app.task(name="spoilt", retry=0)
        def spoilt() -> int:
            return 1
    else:

        @app.task(name="spoilt", retry=0)
        async def spoilt() -> int:
            return 1

    spoil(spoilt)
    (job_id,) = await app.put(spoilt.bind())
    drained = await app.drain()
    assert (drained.failed, drained.left) == (1, 0)
    job = await app.job(job_id)
    assert job.state is State.DEAD and job.errors[0].type == "SystemExit"


@pytest.mark.parametrize("sync", [False, True])
async def test_arguments_whose_own_code_would_end_a_program_bury_the_job(app: WorkerApp, sync: bool) -> None:
    def spoil(task: Any) -> None:
        def decode(raw: bytes) -> dict[str, Any]:
            raise SystemExit(3)

        task._decode = decode

    if sync:

        @app.task(name="spoilt")
        def spoilt() -> None: ...
    else:

        @app.task(name="spoilt")
        async def spoilt() -> None: ...

    spoil(spoilt)
    (job_id,) = await app.put(spoilt.bind())
    drained = await app.drain()
    assert drained.left == 0
    job = await app.job(job_id)
    assert (job.state, job.reason) == (State.DEAD, "undecodable")


async def test_a_log_line_that_is_no_text_holds_up_no_other_report(app: WorkerApp) -> None:
    seen = asyncio.Event()

    @app.task(name="mumbles")
    async def mumbles(ctx: Context) -> None:
        ctx.log(NOT_TEXT)
        ctx.progress(0.5, NOT_TEXT)
        await seen.wait()

    @app.task(name="speaks")
    async def speaks(ctx: Context) -> None:
        ctx.log("clear")
        ctx.progress(0.25, "clear")
        await seen.wait()

    progress = app.listen("progress")
    first, second = await app.put(mumbles.bind(), speaks.bind())
    draining = asyncio.create_task(app.drain(slots=2))
    told = {(await progress.next()).job_id for _ in range(2)}
    assert told == {first, second}
    seen.set()
    await draining
    assert [line.text for line in await (await app.store()).logs(second)] == ["clear"]
    (line,) = await (await app.store()).logs(first)
    assert line.text == "no such file: caf\ufffd.txt"
