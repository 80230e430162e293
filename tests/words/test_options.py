"""Options: every one checked, contradictions refused, a worker's settings judged together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import RetryPolicy, Revival, State
from holdfast.errors import ConfigurationError
from holdfast.options import QueueOptions, TaskOptions, WorkerOptions, encode_call_options, how_held, serial_group
from holdfast.queries import parse_query
from holdfast.rates import UNLIMITED, Rate
from holdfast.records import LIFO, QueueRule, TaskRule


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


def test_what_the_store_must_know_of_a_task_is_its_rule() -> None:
    made = TaskOptions.make(
        name="send",
        aliases=["old.send"],
        limit=3,
        rate="100/m",
        retain_count=10,
        retain_dead=timedelta(days=30),
        retain_dead_count=1000,
    )
    rule = TaskRule(
        name="send", limit=3, rate=Rate(100, 60.0), retain_count=10, retain_dead=30 * 86400.0, retain_dead_count=1000
    )
    assert made.rules() == [rule, replace(rule, name="old.send")]
    assert TaskOptions.make(name="pdf", isolation="process").rules() == [TaskRule(name="pdf", apart=True)]
    assert TaskOptions.make(name="plain").rules() == [TaskRule(name="plain")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": "none"},
        {"rate": "fast"},
        {"rate": "0/s"},
        {"rate": "\u0661\u0660/s"},  # digits of another script
        {"rate": 5},
        {"retain_count": -1},
        {"retain_dead": -1},
        {"on_expire": "keep"},
        {"key": "k", "key_scope": "all"},
        {"key": "k", "key_until": "dead"},
        {"key": "k", "window": 0},
    ],
)
def test_wrong_limits_rates_and_retention_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        TaskOptions.make(**wrong)


@pytest.mark.parametrize(
    ("contradiction", "says"),
    [
        ({"on_conflict": "raise"}, "Give key="),
        ({"key_scope": "global"}, "Give key="),
        ({"key_until": "started"}, "Give key="),
        ({"window": 5}, "Give key="),
        ({"wait": 5}, "Give key="),
        ({"key": "k", "on_conflict": "throttle"}, "needs window="),
        ({"key": "k", "on_conflict": "debounce"}, "needs wait="),
        ({"key": "k", "wait": 5}, "belong to on_conflict"),
        ({"key": "k", "on_conflict": "replace", "wait_max": 5}, "belong to on_conflict"),
        ({"key": "k", "on_conflict": "debounce", "wait": 5, "wait_max": 4}, "shorter than wait"),
        ({"key": "k", "on_conflict": "debounce", "wait": 5, "window": 4}, "Leave out window="),
        ({"key": "k", "on_conflict": "debounce", "wait": 5, "key_until": "finished"}, "Leave out key_until="),
        ({"key": "k", "on_conflict": "throttle", "window": 5, "key_until": "started"}, "exclude each other"),
        ({"key": "k", "window": 5, "key_until": "finished"}, "exclude each other"),
        ({"key": "k", "on_conflict": "keep_last", "group": "g"}, "Leave out group="),
        ({"key": "k", "on_conflict": "keep_last", "key_scope": "global"}, "Leave out key_scope"),
        ({"key": "k", "on_conflict": "keep_last", "window": 5}, "Leave out window="),
    ],
)
def test_keys_that_contradict_themselves_are_refused(contradiction: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        TaskOptions.make(**contradiction)


def test_six_words_become_what_stores_know() -> None:
    def held(**given: Any) -> tuple[Any, ...]:
        made = how_held(TaskOptions.make(key="k", **given), "send", "k")
        return made.on_conflict, made.key_until, made.key_window, made.delay, made.wait_max, made.group

    assert held() == ("keep", "finished", None, None, None, None)
    assert held(on_conflict="replace", key_until="started") == ("replace", "started", None, None, None, None)
    assert held(on_conflict="raise", window=60) == ("raise", "finished", 60.0, None, None, None)
    assert held(on_conflict="throttle", window=60) == ("keep", "finished", 60.0, None, None, None)
    assert held(on_conflict="debounce", wait=5, wait_max=60) == ("debounce", "started", None, 5.0, 60.0, None)
    assert held(on_conflict="keep_last") == ("replace", "started", None, None, None, "one-at-a-time:send/k")


def test_a_serial_group_has_a_name_of_bounded_length() -> None:
    long, longer = serial_group("a" * 400), serial_group("a" * 401)
    assert len(long) == len(longer) == 200
    assert long != longer
    assert long.startswith("one-at-a-time:aaa")


def test_another_on_conflict_or_no_key_begins_afresh() -> None:
    task = TaskOptions.make(key="k", key_scope="global", on_conflict="debounce", wait=5)
    kept = task.changed(on_conflict="keep")
    assert (kept.wait, kept.key_scope) == (None, "global")
    assert task.changed(on_conflict="throttle", window=9).window == 9.0
    keyless = task.changed(key=None)
    assert (keyless.on_conflict, keyless.key_scope, keyless.wait) == ("keep", "queue", None)
    assert task.changed(priority=5).wait == 5.0


def test_a_queues_limits_and_rates_are_its_rule() -> None:
    made = QueueOptions(
        name="mail",
        limit=5,
        rate="100/m",
        group_limit=None,
        group_order="relaxed",
        group_rate="1/s burst 3",
        aging=timedelta(minutes=1),
    )
    assert made.rule() == QueueRule(
        name="mail",
        limit=5,
        rate=Rate(100, 60.0),
        group_limit=UNLIMITED,
        group_order="relaxed",
        group_rate=Rate(1, 1.0, 3),
        aging=60.0,
    )


def test_newest_first_and_a_stop_at_a_dead_job_are_part_of_the_rule() -> None:
    assert QueueOptions(name="mail", order="lifo").rule() == QueueRule(name="mail", aging=LIFO)
    assert QueueOptions(name="mail", on_dead="stop").rule() == QueueRule(name="mail", on_dead="stop")


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
        {"group_limit": None},
        {"limit": 0},
        {"rate": "many"},
        {"group_rate": 3},
        {"aging": 0},
        {"aging": 100_000},
        {"order": "random"},
        {"order": "lifo", "aging": 5},
        {"on_dead": "wait"},
        {"on_dead": "stop", "group_order": "relaxed"},
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
    assert (query.worker, query.id_ends) == ("w", ("018f",))
    assert parse_query("dead").states == (State.DEAD,)
    assert parse_query("018f-7").id_ends == ("018f-7",)
    assert State.RUNNING in parse_query("live").states
    assert parse_query("").states == ()


@pytest.mark.parametrize("wrong", ["state:gone", "colour:red", "queue:", "'open", "state:"])
def test_a_query_that_cannot_be_read_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_query(wrong)
