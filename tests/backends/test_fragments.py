"""Statements are assembled from fragments when they are first used; a check refuses what does not fit together."""

from __future__ import annotations

import pytest

from holdfast.backends.fragments import Statements, StatementsBroken, split_parts
from holdfast.backends.postgres.schema import STATEMENTS
from holdfast.backends.sqlite.codec import SQL

TEXT = """-- verb: for this test.

-- :: fragment in_play(j)
-- This comment is not part of it.
(@j.state = 'ready'
 OR @j.held)

-- :: fragment both(a, b)
@in_play(@a) AND @in_play(@b)

-- :: call
SELECT 1
    WHERE @both(w, f(x, 'y')) LIMIT @READY_PER_GROUP_MAX
"""


def statements(text: str) -> Statements:
    return Statements(split_parts("verb", text))


def test_fragments_parameters_and_constants_are_filled_in() -> None:
    found = statements(TEXT)
    assert list(found.names) == ["verb.call"]
    assert " ".join(found["verb.call"].split()) == (
        "SELECT 1 WHERE (w.state = 'ready' OR w.held) AND (f(x, 'y').state = 'ready' OR f(x, 'y').held) LIMIT 256"
    )


@pytest.mark.parametrize(
    ("there", "instead", "why"),
    [
        ("@both(w, f(x, 'y'))", "@both(w)", "takes"),
        ("@both(w, f(x, 'y'))", "@neither(w)", "nothing is named @neither"),
        ("@both(w, f(x, 'y'))", "true", "no statement uses: \\['both', 'in_play'\\]"),
        ("@both(w, f(x, 'y'))", "@both(w, x", "not closed"),
        ("@READY_PER_GROUP_MAX", "@NO_SUCH_MAX", "no constant"),
        ("fragment both(a, b)", "fragment in_play(a, b)", "defined twice"),
    ],
)
def test_what_does_not_fit_together_is_refused(there: str, instead: str, why: str) -> None:
    assert there in TEXT
    with pytest.raises(StatementsBroken, match=why):
        statements(TEXT.replace(there, instead)).check()


def test_a_statement_is_assembled_when_it_is_first_used() -> None:
    found = statements(TEXT)
    assert not found
    assert found["verb.call"] is found["verb.call"]


@pytest.mark.parametrize("store", [SQL, STATEMENTS], ids=["sqlite", "postgres"])
def test_the_statements_of_each_store_fit_together(store: Statements) -> None:
    store.check()
