"""What a click does: each verb changes the store as its command does, and says so."""

from __future__ import annotations

import asyncio
import html
import re

import pytest

from holdfast import Holdfast
from holdfast.dashboard import store
from tests.dashboard.shop import Browser, dashboard


def test_single_jobs_are_cancelled_run_retried_and_buried(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        assert "1 job made due now" in await visitor.said(await visitor.post("/do/run-now", id=jobs["scheduled"]))
        assert "1 job cancelled" in await visitor.said(await visitor.post("/do/cancel", id=jobs["waiting"]))
        assert "ready again" in await visitor.said(await visitor.post("/do/retry", id=jobs["succeeded"]))
        said = await visitor.said(await visitor.post("/do/bury", id=jobs["ready"], reason="by hand"))
        assert "1 job buried" in said

    asyncio.run(walk())
    states = {name: app.job(id).state.value for name, id in jobs.items()}
    assert states["scheduled"] == "ready"
    assert states["waiting"] == "cancelled"
    assert states["ready"] == "dead"
    assert app.dead.get(jobs["ready"]).reason == "bury"


def test_several_at_once_and_a_refusal_keeps_nobody_else_from_it(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        ids = [jobs["ready"], jobs["succeeded"], jobs["waiting"], "unknown"]
        said = await visitor.said(await visitor.post("/do/cancel", {"id": ids}))
        assert said.startswith("2 jobs cancelled")
        assert "2 refused" in said

    asyncio.run(walk())
    assert app.job(jobs["waiting"]).state == "cancelled"


def test_dead_letters_are_revived_and_discarded(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        assert "1 job revived" in await visitor.said(await visitor.post("/do/revive", id=jobs["dead"]))
        assert app.find_task("billing.charge") is not None

    asyncio.run(walk())
    assert app.job(jobs["dead"]).state != "dead"


def test_a_letter_is_discarded(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        asked = await visitor.post("/do/discard", id=jobs["dead"])
        assert asked.status_code == 200
        assert "Discard 1 job?" in asked.text
        assert await app.dead.aget(jobs["dead"])
        done = await visitor.post("/do/discard", id=jobs["dead"], confirmed="1")
        assert "1 job discarded" in await visitor.said(done)

    asyncio.run(walk())
    assert app.dead.list() == []


def test_all_jobs_that_match_are_acted_on_once_confirmed(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        await app.aenqueue_many(app.tasks["mail.send"].bind(f"user-{number}") for number in range(120))
        visitor = Browser(dashboard(app))
        assert "all 120 that match" in await visitor.page("/jobs?q=state:ready queue:mail")
        fields = {"id": jobs["waiting"], "matching": "1", "query": "state:ready queue:mail"}
        asked = await visitor.post("/do/cancel", fields)
        assert "Cancel 120 jobs?" in asked.text
        assert "holdfast cancel --query" in asked.text
        assert (await app.acounts())["mail"]["ready"] == 120
        done = await visitor.said(await visitor.post("/do/cancel", {**fields, "confirmed": "1"}))
        assert done.startswith("120 jobs cancelled")
        assert (await app.acounts())["mail"]["cancelled"] == 120
        assert (await app.ajob(jobs["waiting"])).state == "waiting"  # selected, but it does not match
        wrong = await visitor.post("/do/cancel", {"matching": "1", "query": "stat:x"})
        assert wrong.status_code == 400

    asyncio.run(walk())


def test_a_job_is_edited_and_deleted(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page(f"/job?id={jobs['scheduled']}")
        assert 'id="edit-form"' in page
        fields = {"id": jobs["scheduled"], "args": '{"to": "bob"}', "queue": "mail", "group": "", "priority": "5"}
        said = await visitor.said(await visitor.post("/do/edit", {**fields, "delay": ""}))
        assert said.startswith("Changed job")
        job = await app.ajob(jobs["scheduled"])
        assert (job.args, job.priority, job.group) == ({"to": "bob"}, 5, None)
        assert "Nothing was changed" in await visitor.said(await visitor.post("/do/edit", fields))
        assert 'name="order"' not in await visitor.page(f"/job?id={jobs['scheduled']}")
        grouped = {**fields, "group": "g", "order": "12"}
        assert (await visitor.said(await visitor.post("/do/edit", grouped))).startswith("Changed job")
        assert (await app.ajob(jobs["scheduled"])).order == 12
        assert 'name="order"' in await visitor.page(f"/job?id={jobs['scheduled']}")
        blank = {**grouped, "order": ""}
        assert "Nothing was changed" in await visitor.said(await visitor.post("/do/edit", blank))
        await visitor.post("/do/edit", {**fields, "group": ""})
        assert "Not done" in await visitor.said(await visitor.post("/do/edit", {**fields, "args": '{"nobody": 1}'}))
        hidden = '{"password": "•••• hidden by key"}'
        assert (await visitor.post("/do/edit", {**fields, "args": hidden})).status_code == 400
        assert (await visitor.post("/do/edit", {**fields, "args": "[]"})).status_code == 400
        assert "Delete 1 job?" in (await visitor.post("/do/delete", id=jobs["dead"])).text
        await visitor.post("/do/delete", id=jobs["dead"], confirmed="1")
        assert (await visitor.get(f"/job?id={jobs['dead']}")).status_code == 404

    asyncio.run(walk())


def test_a_queue_a_group_and_a_task_are_paused_and_resumed(app: Holdfast, jobs: dict[str, str]) -> None:
    targets = [{"queue": "billing"}, {"queue": "billing", "group": "customer:3"}, {"task": "mail.send"}]

    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for target in targets:
            assert "Paused" in await visitor.said(await visitor.post("/do/pause", {**target, "reason": "deploy"}))
        assert "deploy" in await visitor.page("/queue?name=billing")
        assert "paused by dashboard" in await visitor.page("/queues")
        for target in targets:
            assert "Resumed" in await visitor.said(await visitor.post("/do/resume", target))
        assert "paused" not in await visitor.page("/queues")

    asyncio.run(walk())


def test_a_stopped_group_is_shown_and_goes_on_without_its_dead_job(app: Holdfast) -> None:
    async def walk() -> None:
        app.queue("billing", on_dead="stop")
        charge = app.tasks["billing.charge"]
        dead, behind = await charge.aenqueue(2, "fails"), await charge.aenqueue(2)
        await app.awork(drain=True)
        visitor, target = Browser(dashboard(app)), {"queue": "billing", "group": "customer:2"}
        assert "stopped</span>" in await visitor.page("/groups")
        shown = await visitor.page("/group?queue=billing&name=customer:2")
        assert "Continue without the dead job" in shown
        assert dead.id in shown
        assert "Its group is stopped" in await visitor.page(f"/job?id={behind.id}")
        assert "Resumed" in await visitor.said(await visitor.post("/do/resume", {**target, "skip_dead": "1"}))
        assert (await app.ajob(behind.id)).state == "ready"
        assert "Continue without" not in await visitor.page("/group?queue=billing&name=customer:2")

    asyncio.run(walk())


def test_limits_and_rates_are_changed_lifted_and_reset(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        assert "Changed" in await visitor.said(await visitor.post("/do/limit", queue="billing", limit="3", rate="5/s"))
        (queue,) = [one for one in await app.queues.alist() if one.name == "billing"]
        assert queue.override is not None
        assert queue.override.limit == 3
        for text in ("none", "reset"):
            assert "Changed" in await visitor.said(await visitor.post("/do/limit", queue="billing", limit=text))
        wrong = await visitor.said(await visitor.post("/do/limit", queue="billing", limit="many"))
        assert wrong.startswith("Not done:")
        nothing = await visitor.said(await visitor.post("/do/limit", queue="billing"))
        assert nothing.startswith("Not done:")

    asyncio.run(walk())


def test_a_page_shows_the_limit_in_force_not_the_declared_one(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        assert '<td class="r num p2">50</td>' in await visitor.page("/queues")
        await visitor.post("/do/limit", queue="billing", limit="3", rate="7/s")
        for path in ("/queues", "/", "/queue?name=billing"):
            page = await visitor.page(path)
            assert ">3<" in re.sub(r" <span.*?</span>", "", page), path
            assert "7/s" in page, path
        await visitor.post("/do/limit", task="mail.send", limit="4", rate="9/s")
        assert '<td class="r num p3">4</td><td class="r num p3">9/s</td>' in await visitor.page("/tasks")

    asyncio.run(walk())


def test_a_paused_task_is_shown_and_can_be_resumed_where_it_was_paused(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        assert "/do/resume" not in await visitor.page("/task?name=mail.send")
        await visitor.post("/do/pause", task="mail.send", reason="deploy")
        assert "paused by dashboard" in await visitor.page("/tasks")
        page = await visitor.page("/task?name=mail.send")
        assert "paused by dashboard" in page
        assert "/do/resume" in page
        assert "Resumed task mail.send" in await visitor.said(await visitor.post("/do/resume", task="mail.send"))

    asyncio.run(walk())


def test_a_form_without_a_target_is_refused(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for verb in ("pause", "resume", "limit"):
            assert (await visitor.post(f"/do/{verb}", limit="3")).status_code == 400, verb
            assert (await visitor.post(f"/do/{verb}", group="customer:3", limit="3")).status_code == 400, verb
        many = {f"field-{number}": "x" for number in range(2100)}
        assert (await visitor.post("/do/cancel", many)).status_code == 400

    asyncio.run(walk())


def test_cron_entries_are_run_paused_and_resumed(app: Holdfast) -> None:
    async def walk() -> None:
        await app.awork(drain=True)  # declares the entry
        visitor = Browser(dashboard(app))
        assert "nightly" in await visitor.page("/cron")
        assert "Enqueued job" in await visitor.said(await visitor.post("/do/cron-run", entry="nightly"))
        assert "Paused" in await visitor.said(await visitor.post("/do/cron-pause", entry="nightly", reason="holiday"))
        assert (await app.cron.aget("nightly")).paused_by == "dashboard"
        assert "Resumed" in await visitor.said(await visitor.post("/do/cron-resume", entry="nightly"))
        assert (await visitor.said(await visitor.post("/do/cron-run", entry="unknown"))).startswith("Not done:")

    asyncio.run(walk())


def test_the_sentence_after_an_action_is_ours_only(app: Holdfast, jobs: dict[str, str]) -> None:
    """Nobody can make the page say something by planting a cookie of his own."""

    async def walk() -> None:
        visitor = Browser(dashboard(app))
        await visitor.page("/")
        forged = "0" * 64 + "." + b'"Send your password to evil.example"'.hex()
        answer = await visitor.get("/", cookies={"holdfast_said": forged})
        assert "evil.example" not in answer.text

    asyncio.run(walk())


def test_a_job_is_enqueued_from_the_form_of_its_task(app: Holdfast) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page("/task?name=billing.charge")
        assert "customer: int" in page
        fields = {"task": "billing.charge", "arg.customer": "7", "arg.note": "007"}
        assert "Enqueued job" in await visitor.said(await visitor.post("/do/enqueue", fields))
        (job,) = [job async for job in app.jobs("task:billing.charge")]
        assert job.args == {"customer": 7, "note": "007"}
        wrong = await visitor.said(await visitor.post("/do/enqueue", {**fields, "arg.customer": "many"}))
        assert wrong.startswith("Not done")
        assert "Not done" in await visitor.said(await visitor.post("/do/enqueue", {"task": "unknown"}))

    asyncio.run(walk())


def test_a_worker_is_asked_for_its_stacks_paused_and_stopped(app: Holdfast) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        async with app.worker(queues=["mail"], slots=3, lease=4.0):
            (worker,) = await app.aworkers()
            page = await visitor.page("/workers")
            assert "/do/worker-stacks" in page
            shown = await visitor.post("/do/worker-stacks", worker=worker.id)
            assert shown.status_code == 200
            assert "Stacks of worker" in shown.text
            for verb, fields in (("worker-pause", {}), ("worker-resume", {}), ("worker-slots", {"slots": "2"})):
                said = await visitor.said(await visitor.post(f"/do/{verb}", {"worker": worker.id, **fields}))
                assert said.startswith("Worker "), (verb, said)
            asked = await visitor.post("/do/worker-stop", worker=worker.id)
            assert "Stop 1 worker?" in asked.text
            said = await visitor.said(await visitor.post("/do/worker-stop", worker=worker.id, confirmed="1"))
            assert said.startswith("Worker "), said
        said = await visitor.said(await visitor.post("/do/worker-pause", worker="nobody"))
        assert said.startswith("Not done")

    asyncio.run(walk())


def test_jobs_are_moved_ranked_and_rescheduled_together(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        send = app.tasks["mail.send"]
        ids = [(await send.aenqueue(f"user-{number}")).id for number in range(3)]
        visitor = Browser(dashboard(app))
        assert 'id="change"' in await visitor.page("/jobs?q=state:ready")
        assert 'id="change"' not in await visitor.page("/jobs?q=state:succeeded")
        blank = {"queue": "", "priority": "", "delay": "", "rate": "", "args": ""}  # the dialog sends all its fields
        fields = {**blank, "id": ids[:2], "queue": "slow", "priority": "7"}
        answer = await visitor.post("/do/edit-many", fields)
        assert await visitor.said(answer) == "2 jobs changed."
        moved = await app.ajob(ids[0])
        assert (moved.queue, moved.priority) == ("slow", 7)
        asked = await visitor.post("/do/reschedule", {**blank, "delay": "2h", "matching": "1", "query": "queue:slow"})
        assert "Reschedule 2 jobs?" in asked.text
        assert "holdfast reschedule --query queue:slow --delay 7200s" in asked.text
        again = {**blank, "delay": "2h", "matching": "1", "query": "queue:slow", "confirmed": "1"}
        await visitor.post("/do/reschedule", again)
        assert [(await app.ajob(id)).state for id in ids] == ["scheduled", "scheduled", "ready"]
        assert (await visitor.post("/do/edit-many", {**blank, "id": ids[0]})).status_code == 400
        assert (await visitor.post("/do/reschedule", {**blank, "id": ids[0], "delay": "soon"})).status_code == 400
        marks = [(entry.kind, entry.by) for entry in await app.ahistory(ids[0])]
        assert marks.count(("edit", "dashboard")) == 2

    asyncio.run(walk())


def test_dead_letters_are_revived_at_a_rate_and_with_other_arguments(app: Holdfast) -> None:
    async def walk() -> None:
        charge = app.tasks["billing.charge"]
        ids = [(await charge.aenqueue(number, "fails")).id for number in range(3)]
        await app.awork(drain=True)
        visitor = Browser(dashboard(app))
        assert 'name="rate"' in await visitor.page("/dead")
        fields = {"matching": "1", "query": "state:dead", "rate": "1/m", "args": '{"customer": 9}', "confirmed": "1"}
        assert "--query state:dead --rate 1/m --args" in html.unescape(
            (await visitor.post("/do/revive", {**fields, "confirmed": ""})).text
        )
        assert (await visitor.said(await visitor.post("/do/revive", fields))).startswith("3 jobs revived.")
        found = [await app.ajob(id) for id in ids]
        assert [job.args for job in found] == [{"customer": 9}] * 3
        assert sorted(job.state.value for job in found) == ["ready", "scheduled", "scheduled"]
        wrong = {"id": ids[0], "args": '{"nobody": 1}'}
        assert "refused" in await visitor.said(await visitor.post("/do/revive", wrong))

    asyncio.run(walk())


def test_a_count_to_confirm_leaves_out_what_the_verb_cannot_change(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        asked = await Browser(dashboard(app)).post("/do/cancel", {"matching": "1", "query": "queue:billing"})
        assert "Cancel 2 jobs?" in asked.text  # of four, two have ended

    asyncio.run(walk())


def test_a_queue_is_emptied_and_obliterated(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page("/queue?name=billing")
        assert "holdfast queues empty billing" in page
        assert "Delete 2 jobs of queue billing?" in (await visitor.post("/do/empty", queue="billing")).text
        said = await visitor.said(await visitor.post("/do/empty", queue="billing", confirmed="1"))
        assert said.startswith("2 jobs of queue billing deleted")
        left = {str(state): count for state, count in (await app.acounts())["billing"].items() if count}
        assert left == {"succeeded": 1, "dead": 1}
        asked = await visitor.post("/do/obliterate", queue="billing")
        assert 'name="confirm"' in asked.text
        wrong = await visitor.post("/do/obliterate", queue="billing", confirmed="1", confirm="bill")
        assert wrong.status_code == 400
        assert "billing" in await app.acounts()
        await visitor.post("/do/obliterate", queue="billing", confirmed="1", confirm="billing")
        assert "billing" not in await app.acounts()
        assert await app.dead.alist() == []

    asyncio.run(walk())


def test_a_large_queue_is_left_to_the_command(
    app: Holdfast, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BULK_MAX", 3)

    async def walk() -> None:
        visitor = Browser(dashboard(app))
        answer = await visitor.post("/do/obliterate", queue="billing", confirmed="1", confirm="billing")
        assert answer.status_code == 409
        assert "holdfast queues obliterate billing" in html.unescape(answer.text)

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "ready"


def test_past_ticks_of_a_cron_entry_are_backfilled(app: Holdfast) -> None:
    async def walk() -> None:
        async with app:
            await app.awork(drain=True)
            visitor = Browser(dashboard(app))
            fields = {"entry": "nightly", "start": "2024-03-01T00:00", "end": "2024-03-04T00:00"}
            asked = await visitor.post("/do/cron-backfill", fields)
            assert "Enqueue 3 jobs?" in asked.text
            assert "holdfast cron backfill nightly --from 2024-03-01T00:00" in asked.text
            said = await visitor.said(await visitor.post("/do/cron-backfill", {**fields, "confirmed": "1"}))
            assert said.startswith("Enqueued 3 jobs of nightly.")
            assert (await app.acounts())["reports"]["ready"] == 3
            again = await visitor.said(await visitor.post("/do/cron-backfill", {**fields, "confirmed": "1"}))
            assert "3 had one already" in again
            wrong = await visitor.post("/do/cron-backfill", {**fields, "start": "yesterday"})
            assert wrong.status_code == 400

    asyncio.run(walk())


def test_the_audit_runs_from_the_system_page(
    app: Holdfast, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        said = await visitor.said(await visitor.post("/do/audit"))
        assert said.startswith("The audit holds: 5 jobs"), said
        monkeypatch.setattr(store, "AUDIT_MAX", 4)
        assert (await visitor.post("/do/audit")).status_code == 409

    asyncio.run(walk())
