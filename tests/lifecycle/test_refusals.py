"""The sentences of lifecycle.py: each names the verb, the state and a next step."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.errors import OutcomeUnknown
from holdfast.lifecycle import FAILURE_TEXTS, State, Verb, allowed, stall_text, state_conflict

OPERATED = (Verb.CANCEL, Verb.BURY, Verb.RUN_NOW, Verb.REVIVE, Verb.RETRY)


@pytest.mark.parametrize(
    ("verb", "state"), [(verb, state) for verb, state in product(OPERATED, State) if allowed(verb, state) is None]
)
def test_every_refusal_says_what_can_be_done(verb: Verb, state: State) -> None:
    text = str(state_conflict("j", verb, state))
    assert text.startswith(f"cannot {verb.replace('_', '-')} job j: it is {state}. ") and text.endswith(".")


def test_a_refused_retry_of_a_dead_job_speaks_of_retry() -> None:
    assert str(state_conflict("j", "retry", "dead", heir_id="k")).endswith("belongs to job k: retry that one.")
    assert "cannot retry job j: its key is held by job k." in str(state_conflict("j", "retry", "dead", live_id="k"))


def test_a_stall_is_counted_in_words() -> None:
    assert stall_text(stalls=1, shared_stalls=5, max_stalls=3, alone=True).endswith("(stall 2; 3 allowed)")
    assert stall_text(stalls=1, shared_stalls=5, max_stalls=3, alone=False).endswith("(stall 6; 10 allowed)")


def test_texts_fit_between_the_quotes_of_sql_and_lua() -> None:
    assert not [text for text in FAILURE_TEXTS.values() if "'" in text or "\\" in text or "\n" in text]


@pytest.mark.parametrize("verb", ["retry", "revive"])
def test_a_retry_without_an_answer_is_not_said_to_be_safe_to_repeat(verb: str) -> None:
    assert "Look at the job first" in str(OutcomeUnknown(verb))
    assert "at most once" in str(OutcomeUnknown("enqueue"))
