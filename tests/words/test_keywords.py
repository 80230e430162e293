"""Options that do not exist: a ConfigurationError that names the one that was meant."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, RetryPolicy, Revival
from holdfast.errors import ConfigurationError

app: Any = Holdfast("memory://")
retry: Any = RetryPolicy
revival: Any = Revival


def task() -> None: ...


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: app.queue("mail", limits=3), r"app\.queue\(\) has no option 'limits'\. Did you mean limit"),
    (lambda: app.work(slot=3), r"app\.worker\(\) has no option 'slot'\. Did you mean slots"),
    (lambda: asyncio.run(app.awork(slot=3)), r"app\.worker\(\) has no option 'slot'\. Did you mean slots"),
    (lambda: app.worker(renew=3), r"app\.worker\(\) has no option 'renew'\. .*renew_every"),
    (lambda: app.cron("* * * * *", jiter=1), r"app\.cron\(\) has no option 'jiter'\. Did you mean jitter"),
    (
        lambda: app.cron.add("x", app.task_by_name("t").bind(), "* * * * *", zone=1),
        r"app\.cron\.add\(\) has no option 'zone'",
    ),
    (lambda: retry(limits=3), r"RetryPolicy\(\) has no option 'limits'\. Did you mean limit"),
    (lambda: retry.fixed(3, jiter=1), r"RetryPolicy\(\) has no option 'jiter'"),
    (lambda: revival(afterwards=3), r"Revival\(\) has no option 'afterwards'\. Did you mean after"),
    (lambda: Holdfast("memory://", import_=["x"]), r"Holdfast\(\) has no option 'import_'\. Did you mean imports"),  # type: ignore[call-arg]
    (lambda: app.task(retries=3)(task), r"no task option 'retries'\. Did you mean retry"),
    (lambda: app.task_by_name("t").options(delays=3), r"\.options\(\) has no delays=\. Did you mean delay"),
]


@pytest.mark.parametrize(("call", "text"), CALLS)
def test_an_option_that_does_not_exist_names_the_one_that_was_meant(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        call()


def test_signatures_stay_as_they_are() -> None:
    assert list(inspect.signature(RetryPolicy).parameters)[:2] == ["limit", "base"]
    assert "group_order" in inspect.signature(Holdfast.queue).parameters
    assert "shards" in inspect.signature(app.queue).parameters


def test_a_revival_is_stored_and_compared_as_before() -> None:
    packed = msgspec.json.encode(Revival(after=7.0))
    assert packed == b'{"after":7.0,"factor":2.0,"cap":86400.0,"cycles":5}'
    assert msgspec.json.decode(b'{"after":7.0}', type=Revival) == Revival(after=7.0) != Revival()
    with pytest.raises(AttributeError):
        Revival().after = 3.0  # type: ignore[misc]
