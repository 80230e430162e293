"""Options: every one checked, what comes later refused by name, a worker's settings judged together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import RetryPolicy, Revival, State
from holdfast.errors import ConfigurationError
from holdfast.job import parse_query
from holdfast.options import QueueOptions, TaskOptions, WorkerOptions, encode_call_options


def test_the_defaults_are_those_of_the_contract() -> None:
    options = TaskOptions()
    assert (options.queue, options.priority, options.on_conflict, options.max_stalls) == ("default", 0, "keep", 3)
    assert (options.retry, options.timeout, options.retain) == (RetryPolicy(3), None, 86400.0)
    assert (options.group, options.key, options.expires, options.revive, options.aliases) == (None,) * 4 + ((),)


def test_durations_are_normalised() -> None:
    options = TaskOptions.make(timeout=timedelta(minutes=1), expires=5, retain=timedelta(days=2), retry=2)
    assert (options.timeout, options.expires, options.retain) == (60.0, 5.0, 172800.0)
    assert options.retry == RetryPolicy(2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 101},
        {"priority": -101},
        {"priority": 1.5},
        {"queue": ""},
        {"queue": "a{b}"},
        {"name": "a\tb"},
        {"group": ""},
        {"key": 5},
        {"on_conflict": "drop"},
        {"retry": "3"},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"max_stalls": -1},
        {"expires": -5},
        {"retain": -1},
        {"isolation": "thread"},
        {"revive": 3600},
        {"revive": Revival(cycles=0)},
        {"revive": Revival(factor=0.5)},
        {"aliases": [""]},
        {"colour": "red"},
    ],
)
def test_wrong_task_options_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        TaskOptions.make(**wrong)


@pytest.mark.parametrize("limit", [{"memory_limit": 64 << 20}, {"cpu_limit": 1.0}, {"file_limit": 0}])
def test_limits_need_a_process_of_their_own(limit: dict[str, Any]) -> None:
    made = TaskOptions.make(isolation="process", **limit)
    assert {name: getattr(made, name) for name in limit} == limit
    with pytest.raises(ConfigurationError, match="isolation="):
        TaskOptions.make(**limit)


@pytest.mark.parametrize("later", [{"rate": "1/s"}, {"limit": 3}])
def test_task_options_of_a_later_version_are_refused_not_ignored(later: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="not available in this version"):
        TaskOptions.make(**later)


@pytest.mark.parametrize("later", [{"limit": 5}, {"rate": "1/s"}, {"group_rate": "1/s"}])
def test_queue_options_of_a_later_version_are_refused_not_ignored(later: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="not available in this version"):
        QueueOptions(name="mail", **later)


def test_shards_go_with_the_rule() -> None:
    assert QueueOptions(name="mail", shards=6).rule().shards == 6


def test_a_strict_group_runs_one_at_a_time() -> None:
    with pytest.raises(ConfigurationError, match="relaxed"):
        QueueOptions(name="mail", group_limit=2)
    assert QueueOptions(name="mail", group_limit=2, group_order="relaxed").rule().group_limit == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_limit": 0},
        {"group_order": "loose"},
        {"shards": 0},
        {"shards": 5000},
        {"name": "a,b"},
        {"group_limit": True},
    ],
)
def test_wrong_queue_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        QueueOptions(**{"name": "mail", **wrong})


def test_a_workers_defaults_follow_from_its_lease() -> None:
    options = WorkerOptions()
    assert (options.lease, options.renew_every, options.call_timeout, options.fence_margin) == (30.0, 5.0, 3.0, 6.0)
    short = WorkerOptions(lease=3)
    assert short.renew_every == pytest.approx(0.5)
    assert short.call_timeout == pytest.approx(0.3)
    assert short.fence_margin == pytest.approx(0.6)
    assert short.sweep_every == pytest.approx(0.5)


@pytest.mark.parametrize("lease", [0.05, 0.1, 1 / 3, 0.7, 1, 7, 29.9, 60, 3600, 86400])
def test_any_lease_alone_is_good(lease: float) -> None:
    assert WorkerOptions(lease=lease).lease == lease


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lease": 10, "renew_every": 5}, "too short"),
        ({"renew_every": 2, "call_timeout": 3}, "call_timeout"),
        ({"fence_margin": 1}, "fence_margin"),
        ({"lease": 0}, "lease"),
        ({"lease": float("inf")}, "lease"),
        ({"slots": 0}, "slots"),
        ({"slots": 2.5}, "slots"),
        ({"grace": -1}, "grace"),
        ({"on_fence": "explode"}, "on_fence"),
        ({"queues": []}, "queues"),
        ({"queues": ["a{"]}, "queue name"),
        ({"queues": {"mail": 0}}, "mail"),
        ({"sweep_every": "often"}, "sweep_every"),
        ({"sweep_every": -1}, "sweep_every"),
        ({"poll_every": 0}, "poll_every"),
    ],
)
def test_settings_that_could_lose_a_lease_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        WorkerOptions(**wrong)


@pytest.mark.parametrize("off", [None, 0])
def test_sweeps_can_be_turned_off(off: Any) -> None:
    assert WorkerOptions(sweep_every=off).sweep_every is None


def test_queues_may_be_one_many_or_capped() -> None:
    assert WorkerOptions(queues="mail").queues == ("mail",)
    assert WorkerOptions(queues=["b", "a", "b"]).queues == ("b", "a")
    capped = WorkerOptions(queues={"mail": 50, "pdf": None})
    assert capped.queues == ("mail", "pdf")
    assert dict(capped.slots_by_queue) == {"mail": 50}
    assert WorkerOptions().queues is None


def test_options_for_one_call_overrule_the_tasks_own() -> None:
    task = TaskOptions.make(retry=RetryPolicy(3, on=OSError), timeout=5, retain=60)
    assert task.for_call(None) is task
    said = task.changed(retry=RetryPolicy(9, base=2), timeout=None)
    stored = encode_call_options(said, ["retry", "timeout", "queue"])
    merged = task.for_call(stored)
    assert (merged.retry.limit, merged.retry.base, merged.retry.on) == (9, 2.0, (OSError,))
    assert (merged.timeout, merged.retain) == (None, 60.0)
    assert encode_call_options(task, ["queue"]) is None


def test_what_cannot_be_stored_with_a_call_is_refused() -> None:
    for retry in (RetryPolicy.custom(lambda failures, error: 1.0), RetryPolicy(3, never=OSError)):
        with pytest.raises(ConfigurationError, match="numbers only"):
            encode_call_options(TaskOptions.make(retry=retry), ["retry"])


def test_options_from_a_newer_version_leave_the_tasks_own() -> None:
    task = TaskOptions()
    assert task.for_call(b'{"retry": "later"}') is task
    assert task.for_call(b"not json") is task


def test_a_query_is_read_as_people_write_it() -> None:
    query = parse_query("state:ready,running queue:mail task:a.b group:'g 1' key:k:7 worker:w id:018f")
    assert query.states == (State.READY, State.RUNNING)
    assert (query.queue, query.task, query.group, query.key) == ("mail", "a.b", "g 1", "k:7")
    assert (query.worker, query.id_prefix) == ("w", "018f")
    assert parse_query("dead").states == (State.DEAD,)
    assert parse_query("018f-7").id_prefix == "018f-7"
    assert State.RUNNING in parse_query("live").states
    assert parse_query("").states == ()


@pytest.mark.parametrize("wrong", ["state:gone", "colour:red", "queue:", "'open", "state:"])
def test_a_query_that_cannot_be_read_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_query(wrong)
