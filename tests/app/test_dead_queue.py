"""app.queue(dead_queue=): copies of dead jobs, as handlers, operators and those who declare the rule see them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Bury, ConfigurationError, Context, Holdfast


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mail", "dead_queue= names the queue itself"),
        ("", "the dead_queue is empty"),
        ("a,b", "the dead_queue 'a,b' contains ','"),
        (7, "the dead_queue must be a str"),
    ],
)
def test_what_cannot_be_a_dead_queue_is_refused(memory_app: Holdfast, name: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        memory_app.queue("mail", dead_queue=name)


def test_the_rule_is_stored_and_shown(memory_app: Holdfast) -> None:
    memory_app.queue("mail", dead_queue="mail.dead")
    memory_app.open()
    [queue] = [queue for queue in memory_app.queues.list() if queue.name == "mail"]
    assert queue.dead_queue == "mail.dead"


def test_the_same_task_can_tell_a_copy_by_its_headers(memory_app: Holdfast) -> None:
    memory_app.queue("mail", dead_queue="mail.dead")
    seen: list[dict[str, str]] = []

    @memory_app.task(name="send", queue="mail", retry=0)
    def send(ctx: Context, address: str) -> None:
        seen.append(ctx.headers)
        if "dead-id" not in ctx.headers:
            raise Bury("no such host")

    job = send.options(headers={"tenant": "acme"}).enqueue("ann")
    memory_app.work(queues=["mail", "mail.dead"], drain=True)
    told = {"dead-id": job.id, "dead-queue": "mail", "dead-reason": "bury"}
    assert seen == [{"tenant": "acme"}, {"tenant": "acme", **told}]
    [copy] = memory_app.jobs("queue:mail.dead")
    assert [found.id for found in memory_app.jobs("header.dead-queue:mail")] == [copy.id]
    assert len(memory_app.dead.list()) == 1


def test_a_copy_takes_results_from_the_parents_of_the_dead_job(memory_app: Holdfast) -> None:
    memory_app.queue("sums", dead_queue="sums.dead")
    got: list[tuple[int, list[int]]] = []

    @memory_app.task(name="one")
    def one() -> int:
        return 1

    @memory_app.task(name="add", queue="sums", retry=0)
    def add(ctx: Context, number: int) -> None:
        if "dead-id" not in ctx.headers:
            raise ValueError("not now")
        got.append((number, list(ctx.parents.values())))

    first = one.bind()
    memory_app.enqueue_many([first, add.bind(first.result)])
    memory_app.work(queues=["default", "sums", "sums.dead"], drain=True)
    assert got == [(1, [1])]


def test_explain_names_the_copy_and_the_job_it_is_a_copy_of(memory_app: Holdfast) -> None:
    memory_app.queue("mail", dead_queue="mail.dead")

    @memory_app.task(name="send", queue="mail", retry=0)
    def send() -> None:
        raise ValueError

    job = send.enqueue()
    memory_app.work(queues=["mail"], drain=True)
    [copy] = memory_app.jobs("queue:mail.dead")
    dead, live = memory_app.explain(job.id), memory_app.explain(copy.id)
    assert f"A copy of it is in queue 'mail.dead': job {copy.id} ({copy.state.value})." in dead.reasons
    assert f"It is a copy of job {job.id}, which died in queue 'mail' (failed)." in live.reasons
