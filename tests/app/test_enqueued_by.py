"""Who enqueued a job, as its timeline says: a process, a job, a cron entry, or the name given as `by=`."""

from __future__ import annotations

import os
import sys

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import ConfigurationError
from holdfast.headers import enqueued_by, headers_of, tags_of, with_enqueuer
from holdfast.inspection.history import timeline
from holdfast.lifecycle import State
from holdfast.names import PROCESS_CHARS_MAX, forget_process, process_signature, this_process
from holdfast.options import TaskOptions
from holdfast.records import JobRecord
from holdfast.task import signed


def enqueuer(app: Holdfast, job: str) -> str:
    [entry] = [entry for entry in app.history(job) if entry.kind == "enqueued"]
    return entry.by


def test_a_job_names_the_process_that_enqueued_it() -> None:
    app = Holdfast("memory://")
    send = app.task(name="send")(_nothing)
    with app:
        one = send.enqueue()
        app.enqueue_many([send.options(headers={"a": "b"}, tags="vip", timeout=5.0, id="many").bind()])
        assert enqueuer(app, one.id) == this_process()
        assert f":{os.getpid()} " in this_process()
        many = app.job("many")
        assert enqueuer(app, "many") == this_process()
        assert (many.headers, many.tags) == ({"a": "b", "tags": "vip"}, ("vip",))
        assert one.headers == {}


def test_a_job_that_a_handler_enqueues_names_the_handlers_job() -> None:
    app = Holdfast("memory://")
    child = app.task(name="child")(_nothing)

    @app.task(name="parent")
    def parent(ctx: Context) -> str:
        return child.enqueue().id

    with app:
        job = parent.enqueue()
        app.work(drain=True)
        by = enqueuer(app, job.result())
        assert by == f"job {job.id} on {this_process().partition(' ')[0]}"


def test_a_job_of_a_tick_names_its_entry_however_it_was_declared() -> None:
    app = Holdfast("memory://")
    report = app.task(name="report")(_nothing)
    with app:
        app.cron.add("nightly", report.options(headers={"a": "b"}).bind(), cron="0 3 * * *")
        job = app.cron.run_now("nightly")
        assert enqueuer(app, job.id) == "cron nightly"
        assert app.job(job.id).headers == {"a": "b"}


def test_the_name_given_by_the_call_is_kept() -> None:
    app = Holdfast("memory://")
    send = app.task(name="send")(_nothing)
    with app:
        assert enqueuer(app, send.options(by="ann").options(delay=5).enqueue().id) == "ann"
        assert len(enqueuer(app, send.options(by="x" * 1000).enqueue().id)) == 200
        assert enqueuer(app, send.options(by="").enqueue().id) == this_process()
        with pytest.raises(ConfigurationError, match="by must be a str"):
            send.options(by=3)  # type: ignore[arg-type]


def test_a_hook_that_adds_headers_keeps_who_enqueued() -> None:
    app = Holdfast("memory://")
    send = app.task(name="send")(_nothing)
    app.on_enqueue(lambda call, headers: headers.update(trace="1"))
    with app:
        job = send.enqueue()
        assert job.headers == {"trace": "1"}
        assert enqueuer(app, job.id) == this_process()


def test_stored_options_carry_it_beside_the_others() -> None:
    alone, beside = signed(None), signed(b'{"timeout":5.0,"headers":{"tags":"vip"}}')
    assert enqueued_by(alone) == enqueued_by(beside) == this_process()
    assert tags_of(beside) == ("vip",)
    defaults = TaskOptions(name="t")
    assert defaults.for_call(alone) is defaults
    assert defaults.for_call(beside).timeout == 5.0
    assert with_enqueuer(alone, "") is None
    assert headers_of(with_enqueuer(beside, "")) == {"tags": "vip"}


@pytest.mark.parametrize("options", [None, b'{"timeout":5}', b"nonsense", b'{"by":5}'])
def test_a_job_of_before_has_nobody(options: bytes | None) -> None:
    job = JobRecord(id="j", seq=1, task="t", queue="q", state=State.READY, args=b"{}", options=options)
    assert timeline(job, [])[0].by == ""


def test_a_process_is_named_in_few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_process()
    monkeypatch.setattr(sys, "argv", [f"/srv/shop/{'x' * 500}"])
    assert len(this_process()) == PROCESS_CHARS_MAX
    named = {"/srv/shop/__main__.py": "shop", "-c": "python", "": "python", "a\x1bb": "a\\x1bb"}
    for start, program in named.items():
        forget_process()
        monkeypatch.setattr(sys, "argv", [start])
        assert this_process().partition(" ")[2] == program
        assert enqueued_by(process_signature()) == this_process()
    forget_process()


def _nothing() -> None: ...
