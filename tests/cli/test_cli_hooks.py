"""Middleware, startup and headers in the runner processes of `holdfast work`, and headers on the command line."""

from __future__ import annotations

import pytest
from tests.cli.shells import Shell

SHOP = """
import os
from contextvars import ContextVar
from holdfast import Context, Holdfast

app = Holdfast({url!r})
TENANT = ContextVar("tenant")

@app.on_startup
async def open_pool(resources):
    if os.environ.get("BROKEN"):
        raise ConnectionError("the database is away")
    resources["pid"] = os.getpid()

@app.on_shutdown
def close_pool(resources):
    with open({ended!r}, "a") as file:
        file.write(f"{{resources['pid'] == os.getpid()}}\\n")

def tenant(ctx, call_next):
    TENANT.set(ctx.headers["tenant"])
    return {{"around": os.getpid(), **call_next()}}

async def atenant(ctx, call_next):
    TENANT.set(ctx.headers["tenant"])
    return {{"around": os.getpid(), **await call_next()}}

app.around(tenant, atenant)

def seen(ctx: Context) -> dict:
    return {{"pid": ctx.resources["pid"], "own": os.getpid(), "tenant": TENANT.get()}}

@app.task(name="sync")
def sync(ctx: Context) -> dict:
    return seen(ctx)

@app.task(name="async")
async def asynchronous(ctx: Context) -> dict:
    return seen(ctx)

@app.task(name="alone", isolation="process")
def alone(ctx: Context) -> dict:
    return seen(ctx)
"""


@pytest.fixture
def hooked(shell: Shell) -> Shell:
    text = SHOP.format(url=shell.url, ended=str(shell.directory / "ended"))
    (shell.directory / f"{shell.module}.py").write_text(text)
    return shell


def work(shell: Shell, *words: str) -> list[str]:
    return ["work", f"{shell.module}:app", "--app-dir", str(shell.directory), "--drain", "--runners", "1", *words]


def test_hooks_run_in_every_process_that_runs_handlers(hooked: Shell) -> None:
    ids = [hooked.job(task, headers={"tenant": task}) for task in ("sync", "async", "alone")]
    for job_id, task in zip(ids, ("sync", "async", "alone"), strict=True):
        hooked("edit", job_id, "--args", "{}")
        assert hooked.json("job", job_id)["job"]["headers"] == {"tenant": task}
    assert '{"tenant": "sync"}' in hooked("job", ids[0]).stdout
    hooked(*work(hooked))
    values = [hooked.json("job", job_id)["job"]["value"] for job_id in ids]
    assert [value["tenant"] for value in values] == ["sync", "async", "alone"]
    for value in values:
        assert value["pid"] == value["own"] == value["around"]
    assert values[0]["own"] == values[1]["own"] != values[2]["own"]
    assert set((hooked.directory / "ended").read_text().split()) == {"True"}


def test_a_failing_startup_ends_the_worker_with_its_reason_and_takes_no_job(
    hooked: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = hooked.job("sync")
    monkeypatch.setenv("BROKEN", "1")
    told = hooked.error(*work(hooked), code=7)
    assert "open_pool failed: ConnectionError: the database is away. This process takes no jobs." in told["message"]
    job = hooked.json("job", job_id)["job"]
    assert (job["state"], job["attempts"]) == ("ready", 0)


def test_a_middleware_that_fits_no_handler_ends_the_worker_with_its_reason(hooked: Shell) -> None:
    with (hooked.directory / f"{hooked.module}.py").open("a") as file:
        file.write("\n@app.around\ndef half(ctx, call_next):\n    return call_next()\n")
    told = hooked.error(*work(hooked), code=7)
    assert "half is written with `def`, and these handlers are async: async" in told["message"]
