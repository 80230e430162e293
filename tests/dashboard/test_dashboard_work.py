"""Working over the JSON API: lease, renew, settle and leave, on every store; who may; and a worker in JavaScript."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job, RetryPolicy, State
from holdfast.backends.contract import Backend
from holdfast.dashboard import Access
from holdfast.records import Answer, ClaimRequest, Held
from holdfast.worker.keeper.identity import new_worker
from tests.chaos.scene import until
from tests.dashboard.shop import Browser, dashboard
from tests.moving.stage import fresh_url

KINDS = ["memory", "sqlite", "postgres", "redis", "cluster"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "node" / "worker.mjs"


@pytest.fixture(params=KINDS)
def mail(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory://" if request.param == "memory" else fresh_url(request.param, tmp_path)
    with Holdfast(url) as made:
        made.queue("mail")

        @made.task(name="mail.send", queue="mail", retry=RetryPolicy.fixed(60, limit=1))
        def send(to: str) -> str:
            raise AssertionError("no Python runs it")

        yield made


async def post(visitor: Browser, path: str, **body: Any) -> Any:
    answer = await visitor.http.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def me(leased: dict[str, Any]) -> dict[str, Any]:
    """What every further call about these leases sends."""
    return {"worker": leased["worker"], "secret": leased["secret"]}


def test_each_outcome_has_its_effect(mail: Holdfast) -> None:
    send = mail.tasks["mail.send"]

    async def walk() -> None:
        visitor = Browser(dashboard(mail))
        ends: dict[str, dict[str, Any]] = {
            "done": {"outcome": "succeed", "value": {"sent": 1}},
            "failed": {"outcome": "fail", "error": "no such mailbox"},
            "again": {"outcome": "retry", "delay": 500, "error": "busy"},
            "later": {"outcome": "snooze", "delay": 500},
            "buried": {"outcome": "bury", "error": "not our customer"},
            "back": {"outcome": "release"},
        }
        jobs = {name: await send.options(group=f"g-{name}", headers={"n": name}).aenqueue(name) for name in ends}
        left = await send.aenqueue("left")
        leased = await post(visitor, "lease", queues=["mail"], most=20, lease=20, name="node")
        assert leased["renew_every"] == pytest.approx(20 / 3)
        by_name = {job["args"]["to"]: job for job in leased["jobs"]}
        assert set(by_name) == {*ends, "left"}
        assert by_name["done"]["headers"] == {"n": "done"}
        assert (by_name["done"]["attempt"], by_name["done"]["group"]) == (1, "g-done")
        own = me(leased)
        [shown] = await mail.aworkers()
        assert (shown.id, shown.host, shown.running) == (leased["worker"], "node", 7)
        held = [{"id": job["id"], "token": job["token"]} for job in leased["jobs"]]
        assert await post(visitor, "renew", **own, leases=held) == {"lost": [], "cancelled": []}
        named = {name: {"id": job["id"], "token": job["token"]} for name, job in by_name.items()}
        said = await post(visitor, "settle", **own, outcomes=[{**named[name], **end} for name, end in ends.items()])
        assert [one["answer"] for one in said["answers"]] == ["ok"] * 6
        again = await post(visitor, "settle", **own, outcomes=[{**named["done"], **ends["done"]}])
        assert again["answers"] == [{"id": jobs["done"].id, "answer": "lost"}]
        assert await post(visitor, "leave", **own) == {"released": 1}
        states = {name: (await job.arefresh()).state for name, job in jobs.items()}
        assert states == {
            "done": State.SUCCEEDED,
            "failed": State.SCHEDULED,
            "again": State.SCHEDULED,
            "later": State.SCHEDULED,
            "buried": State.DEAD,
            "back": State.READY,
        }
        assert await jobs["done"].aresult() == {"sent": 1}
        assert (jobs["failed"].failures, jobs["failed"].errors[0].text) == (1, "no such mailbox")
        assert (await left.arefresh()).attempts == 0
        counted = (await mail.astats("queue", since=3600)).lines
        assert sum(line.counts.get("succeeded", 0) for line in counted) == 1
        assert await post(visitor, "lease", queues=["nothing"], wait=0.1) == {
            "worker": None,
            "secret": None,
            "renew_every": 10.0,
            "jobs": [],
        }

    asyncio.run(walk())


def test_a_job_whose_arguments_are_gone_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def walk(app: Holdfast) -> None:
        named = app.named("mail.send", queue="mail")
        lost, found = await named.aenqueue("x" * 3000), await named.aenqueue("y")
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("DELETE FROM holdfast_bodies")
        connection.close()
        leased = await post(Browser(dashboard(app)), "lease", queues=["mail"], most=2)
        assert [(job["id"], job["args"]) for job in leased["jobs"]] == [(lost.id, None), (found.id, {"*": ["y"]})]

    with Holdfast(f"sqlite:///{path}") as app:
        asyncio.run(walk(app))


def test_a_death_that_a_lease_of_a_client_recovers_is_counted_once(mail: Holdfast) -> None:
    async def die(backend: Backend) -> None:
        worker = new_worker(lease=0.05, queues=("mail",), slots=1)
        await backend.register(worker)
        [lease] = (await backend.claim(ClaimRequest(worker=worker.id, call=1, queues=("mail",), most=1))).leases
        assert await backend.begin([Held(lease.id, lease.token)]) == [Answer.OK]

    async def walk() -> None:
        visitor = Browser(dashboard(mail))
        job = await mail.tasks["mail.send"].options(max_stalls=0).aenqueue("ann")
        await mail._store.acall(die)
        async with asyncio.timeout(60):
            while (await job.arefresh()).state is not State.DEAD:
                assert (await post(visitor, "lease", queues=["mail"], wait=0.05))["jobs"] == []
        assert {line.name: line.counts for line in (await mail.astats("task")).lines} == {"mail.send": {"dead": 1}}

    asyncio.run(walk())


def test_jobs_to_be_removed_go_with_their_success_where_that_is_known(mail: Holdfast) -> None:
    """A call's own `remove` is stored with the job; that of a task is known if the dashboard has the app."""
    send = mail.tasks["mail.send"]

    @mail.task(name="mail.ping", queue="mail", remove=True)
    def ping(to: str) -> None: ...

    async def walk(visitor: Browser) -> list[str]:
        jobs = [await send.options(remove=True).aenqueue("call"), await ping.aenqueue("task")]
        leased = await post(visitor, "lease", queues=["mail"], most=2)
        ends = [{"id": job["id"], "token": job["token"], "outcome": "succeed"} for job in leased["jobs"]]
        said = await post(visitor, "settle", **me(leased), outcomes=ends)
        assert [one["answer"] for one in said["answers"]] == ["ok", "ok"]
        await post(visitor, "leave", **me(leased))
        found = await mail._store.acall(lambda backend: backend.ended([job.id for job in jobs]))
        return ["removed" if found[job.id] is None else "kept" for job in jobs]

    assert asyncio.run(walk(Browser(dashboard(mail)))) == ["removed", "removed"]
    if not mail.url.startswith("memory"):
        with Holdfast(mail.url) as without_tasks:
            assert asyncio.run(walk(Browser(dashboard(without_tasks)))) == ["removed", "kept"]


def test_a_result_as_large_as_the_app_allows_is_settled(mail: Holdfast) -> None:
    """The limit is that of results; what is larger is refused with its name, and the lease stays."""
    send = mail.tasks["mail.send"]

    async def walk() -> None:
        visitor = Browser(dashboard(mail))
        job = await send.aenqueue("ann")
        leased = await post(visitor, "lease", queues=["mail"])
        [lease] = leased["jobs"]
        end = {"id": lease["id"], "token": lease["token"], "outcome": "succeed"}

        async def settle(value: str) -> Any:
            body = {**me(leased), "outcomes": [{**end, "value": value}]}
            content = json.dumps(body).encode()  # which writes each é as six bytes
            return await visitor.http.post("/api/settle", content=content, headers={"content-type": "application/json"})

        whole = "é" * ((mail.result_bytes_max - 2) // 2)
        far, larger = await settle(whole * 3), await settle(whole + "é")
        assert (far.status_code, f"result_bytes_max is {mail.result_bytes_max}" in far.text) == (413, True)
        assert (larger.status_code, "result_bytes_max" in larger.text) == (400, True)
        assert (await job.arefresh()).state is State.RUNNING
        assert (await settle(whole)).json()["answers"] == [{"id": job.id, "answer": "ok"}]
        assert await job.aresult() == whole

    asyncio.run(walk())


def test_what_a_client_is_told_to_stop(mail: Holdfast) -> None:
    send = mail.tasks["mail.send"]

    async def walk() -> None:
        visitor = Browser(dashboard(mail))
        cancelled, lost = await send.aenqueue("cancelled"), await send.aenqueue("lost")
        leased = await post(visitor, "lease", queues=["mail"], most=2)
        own, held = me(leased), [{"id": job["id"], "token": job["token"]} for job in leased["jobs"]]
        await mail.acancel(cancelled.id)
        assert await post(visitor, "renew", **own, leases=held) == {"lost": [], "cancelled": [cancelled.id]}
        [one] = [lease for lease in held if lease["id"] == cancelled.id]
        said = await post(visitor, "settle", **own, outcomes=[{**one, "outcome": "succeed"}])
        assert said["answers"] == [{"id": cancelled.id, "answer": "cancelled"}]
        assert (await cancelled.arefresh()).state is State.CANCELLED
        await mail._store.acall(lambda backend: backend.recover(dead=[own["worker"]]))
        [other] = [lease for lease in held if lease["id"] == lost.id]
        assert await post(visitor, "renew", **own, leases=[other]) == {"lost": [lost.id], "cancelled": []}
        said = await post(visitor, "settle", **own, outcomes=[{**other, "outcome": "succeed"}])
        assert said["answers"] == [{"id": lost.id, "answer": "lost"}]

    asyncio.run(walk())


def test_outcomes_are_settled_together_or_refused_together(mail: Holdfast) -> None:
    """The second value is nested too deeply: the client must not guess whether the first one was settled."""
    send = mail.tasks["mail.send"]

    async def walk() -> None:
        visitor = Browser(dashboard(mail))
        jobs = [await send.aenqueue("ann"), await send.aenqueue("bob")]
        leased = await post(visitor, "lease", queues=["mail"], most=2)
        ends = [{"id": job["id"], "token": job["token"], "outcome": "succeed"} for job in leased["jobs"]]
        deep: list[Any] = []
        for _ in range(70):
            deep = [deep]
        body = {**me(leased), "outcomes": [ends[0], {**ends[1], "value": deep}]}
        answer = await visitor.http.post("/api/settle", json=body)
        assert (answer.status_code, "nested" in answer.text) == (400, True)
        assert [(await job.arefresh()).state for job in jobs] == [State.RUNNING] * 2
        said = await post(visitor, "settle", **me(leased), outcomes=[*ends, ends[0]])
        assert [one["answer"] for one in said["answers"]] == ["ok", "ok", "lost"]

    asyncio.run(walk())


def test_a_control_character_is_refused_on_every_store(mail: Holdfast) -> None:
    """PostgreSQL cannot store U+0000; that is the client's mistake, not the server's."""

    async def walk() -> None:
        visitor, odd = Browser(dashboard(mail)), "api-\0"
        lease = {"id": odd, "token": "t"}
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("lease", {"queues": [odd]}),
            ("lease", {"queues": ["mail"], "name": odd}),
            ("renew", {"worker": odd, "secret": "s", "leases": []}),
            ("renew", {"worker": "api-1", "secret": "s", "leases": [lease]}),
            ("settle", {"worker": "api-1", "secret": "s", "outcomes": [{**lease, "outcome": "release"}]}),
            ("leave", {"worker": odd, "secret": "s"}),
            ("leave", {"worker": "api-1", "secret": odd}),
        ]
        for path, body in bodies:
            answer = await visitor.http.post(f"/api/{path}", json=body)
            assert answer.status_code == 400, (path, body)

    asyncio.run(walk())


async def refused_all(visitor: Browser, own: dict[str, str], job: Job[Any]) -> None:
    """None of the calls about these leases is accepted, and the job's lease stays as it was."""
    bodies: dict[str, dict[str, Any]] = {
        "renew": {"leases": []},
        "settle": {"outcomes": [{"id": job.id, "token": "x", "outcome": "release"}]},
        "leave": {},
    }
    for path, body in bodies.items():
        answer = await visitor.http.post(f"/api/{path}", json={**own, **body})
        assert (answer.status_code, "not the secret of worker" in answer.text) == (403, True), path
        assert (await job.arefresh()).state is State.RUNNING


def test_a_client_speaks_for_no_other_worker(mail: Holdfast) -> None:
    """Else it could give back what runs elsewhere, and it would run twice at once."""
    send = mail.tasks["mail.send"]

    async def walk() -> None:
        visitor = Browser(dashboard(mail))
        job = await send.aenqueue("ann")
        async with mail.lease("mail") as [held]:
            [other] = await mail.aworkers()
            await refused_all(visitor, {"worker": other.id, "secret": "x"}, job)
            await held.asucceed("once")
        assert (await job.arefresh()).attempts == 1

    asyncio.run(walk())


def test_clients_of_the_api_cannot_end_each_others_leases(mail: Holdfast) -> None:
    """Everybody sees a worker's id. Its secret is in one reply only, and any process of the dashboard accepts it."""
    send = mail.tasks["mail.send"]

    async def walk() -> None:
        mine, others = Browser(dashboard(mail)), Browser(dashboard(mail))
        job, second = await send.aenqueue("ann"), await send.aenqueue("bob")
        leased = await post(mine, "lease", queues=["mail"])
        [held] = leased["jobs"]
        theirs = await post(others, "lease", queues=["mail"])
        [shown] = [one for one in await mail.aworkers() if one.id == leased["worker"]]
        await refused_all(others, {**me(theirs), "worker": shown.id}, job)
        await refused_all(others, {**me(leased), "worker": theirs["worker"]}, job)
        assert (await others.http.post("/api/leave", json={"worker": shown.id})).status_code == 400
        assert await post(others, "leave", **me(theirs)) == {"released": 1}
        assert (await second.arefresh()).state is State.READY
        named = {"id": held["id"], "token": held["token"]}
        restarted = Browser(dashboard(mail))
        assert await post(restarted, "renew", **me(leased), leases=[named]) == {"lost": [], "cancelled": []}
        said = await post(restarted, "settle", **me(leased), outcomes=[{**named, "outcome": "succeed"}])
        assert said["answers"] == [{"id": job.id, "answer": "ok"}]
        assert (await job.arefresh()).attempts == 1

    asyncio.run(walk())


def test_who_may_work(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        everything_else = Access(name="ann", payload=True, operate=True, destroy=True)
        for visitor in (
            Browser(dashboard(app, access=lambda connection: everything_else)),
            Browser(dashboard(app, read_only=True)),
        ):
            for path in ("lease", "renew", "settle", "leave"):
                answer = await visitor.http.post(f"/api/{path}", json={"queues": ["billing"], "worker": "w"})
                assert answer.status_code == 403, path
        worker = Browser(dashboard(app, access=lambda connection: Access(name="node", work=True)))
        assert (await worker.http.post("/api/do/cancel", json={"id": [jobs["ready"]]})).status_code == 403
        wrong: list[Any] = [{}, {"queues": []}, {"queues": ["billing"], "most": 0}, {"queues": ["b"], "wait": 60}, []]
        for body in wrong:
            assert (await worker.http.post("/api/lease", json=body)).status_code == 400, body
        refused = await worker.http.post("/api/lease", content="{}", headers={"content-type": "text/plain"})
        assert refused.status_code == 415
        assert (await worker.get("/api/lease")).status_code == 405
        [job] = (await post(worker, "lease", queues=["billing"]))["jobs"]
        assert job["id"] == jobs["ready"]

    asyncio.run(walk())


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_worker_in_javascript(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Holdfast(url) as app:
        send = app.task_by_name("mail.send", queue="mail")
        good = [send.enqueue(to=f"user-{number}@example.com") for number in range(25)]
        bad = send.options(retry=0).enqueue(to="nobody")
        command = [sys.executable, "-m", "holdfast.cli", "dashboard", "--url", url, "--port", str(port), "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as served:
            try:
                until(lambda: _answers(port), what="the dashboard answers")
                ended = subprocess.run(
                    ["node", str(EXAMPLE), "mail"],
                    env={"PATH": "/usr/bin:/bin", "HOLDFAST_API": f"http://127.0.0.1:{port}", "HOLDFAST_DRAIN": "1"},
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
            finally:
                served.terminate()
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert {job.result() for job in good} == {f"sent to user-{number}@example.com" for number in range(25)}
        assert (bad.refresh().state, bad.failures) == (State.DEAD, 1)
        assert "nobody is no address" in bad.errors[0].text
        assert app.audit().violations == []


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
