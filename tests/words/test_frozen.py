"""Values that do not change: equal by their fields, copied and pickled, and discreet where they hold secrets."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from rich.pretty import pretty_repr

from holdfast import Holdfast, RetryPolicy
from holdfast.backends import parse_url
from holdfast.backends.urls import split_server_url
from holdfast.options import WorkerOptions


def test_a_policy_is_equal_by_its_fields_and_does_not_change() -> None:
    one = RetryPolicy(limit=2)
    assert one == RetryPolicy(limit=2) != RetryPolicy(limit=3)
    assert hash(one) == hash(RetryPolicy(limit=2))
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert repr(one).startswith("RetryPolicy(limit=2, base=1.0, ")
    with pytest.raises(AttributeError, match="does not change"):
        one.limit = 3
    with pytest.raises(AttributeError, match="does not change"):
        del one.limit


def test_options_with_other_slots_leave_the_first_as_they_were() -> None:
    one = WorkerOptions(slots=2)
    other = one.with_slots(3)
    assert (one.slots, other.slots, other.lease) == (2, 3, one.lease)


app = Holdfast("memory://")


@app.task(name="hush")
def hush(secret: str) -> None: ...


@pytest.mark.parametrize(
    "value",
    [parse_url("redis://me:hunter2@h:1/0"), split_server_url("redis", "me:hunter2@h:1/0"), hush.bind("hunter2")],
    ids=["address", "parts", "call"],
)
def test_what_holds_a_secret_shows_it_nowhere(value: Any) -> None:
    assert "hunter2" not in repr(value)
    assert "hunter2" not in pretty_repr(value)
