"""The query language: what is read, what is refused and where, and that reading takes linear time."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import QueryRejected, State
from holdfast.headers import with_headers
from holdfast.lifecycle import Failure
from holdfast.queries import continued, make_query, matches, parse_query, position, position_text, without_states
from holdfast.queries.language import words_of
from holdfast.queries.match import fits
from holdfast.records import Condition, JobQuery, JobRecord, Wanted


def job(**fields: object) -> JobRecord:
    given = {"id": "018f-aaaa", "seq": 1, "task": "send", "queue": "mail", "state": State.READY, "args": b"{}"}
    return JobRecord(**{**given, **fields})  # type: ignore[arg-type]


def test_exact_names_are_fields_and_everything_else_is_a_condition() -> None:
    query = parse_query("state:dead queue:mail task:send_* -group:x attempts:>3 args.user.id:42")
    assert (query.states, query.queue, query.task) == ((State.DEAD,), "mail", None)
    assert query.more == (
        Condition(field="task", tests=(Wanted(parts=("send_", "")),)),
        Condition(field="group", tests=(Wanted(parts=("x",)),), negated=True),
        Condition(field="attempts", tests=(Wanted(op=">", parts=("3",), number=3.0),)),
        Condition(field="args", tests=(Wanted(parts=("42",), number=42.0),), path=("user", "id")),
    )


def test_a_header_is_compared_as_text_under_its_name() -> None:
    headed = job(options=with_headers(None, {"tenant": "acme", "request.id": "42"}))
    for text, found in {"header.request.id:42": True, "header.tenant:a*,b": True, "header.tenant:>1": False}.items():
        assert matches(parse_query(text), headed, 0.0) is found, text
    assert not matches(parse_query("header.tenant:*"), job(), 0.0)
    with pytest.raises(QueryRejected, match=r"needs the header's name. Write header.tenant:acme"):
        parse_query("header:acme")


def test_quotes_keep_spaces_commas_stars_and_dots() -> None:
    assert parse_query("group:'g 1' key:\"a,b\" task:'send*'").more == ()
    assert (parse_query("key:'a,b'").key, parse_query("task:'x*'").task) == ("a,b", "x*")
    assert parse_query("'group:g 1'").group == "g 1"
    assert parse_query('args."a.b":1').more[0].path == ("a.b",)
    assert parse_query(r"key:a\,b").key == "a,b"
    assert parse_query('key:"say \\"hi\\""').key == 'say "hi"'
    assert parse_query('"some text"').more == (Condition(field="text", tests=(Wanted(parts=("some text",)),)),)


def test_states_combine() -> None:
    assert parse_query("live -ready").states == (State.SCHEDULED, State.WAITING, State.RUNNING)
    assert parse_query("-finished").states == parse_query("live").states
    assert not matches(parse_query("dead ready"), job(state=State.DEAD), 0.0)


@pytest.mark.parametrize(
    ("text", "column", "suggestion"),
    [
        ("state:daed", 7, "dead"),
        ("live quue:mail", 6, "queue:"),
        ("ded", 1, "dead"),
        ("queue:", 1, None),
        ("task:a,,b", 6, None),
        ("age:1h", 5, "age:>1h"),
        ("age:>soon", 5, None),
        ("attempts:>many", 10, None),
        ("args.x:>abc", 8, None),
        ("args..x:1", 1, None),
        ("task:a 'open", 8, None),
        ("task:a \x07", 8, None),
        ("-colour:red", 2, None),
        ("tga:vip", 1, "tag:"),
        ("header:acme", 1, None),
        ("tag.a:x", 1, "tag:"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_column(text: str, column: int, suggestion: str | None) -> None:
    with pytest.raises(QueryRejected) as refused:
        parse_query(text)
    assert (refused.value.column, refused.value.suggestion) == (column, suggestion)
    assert f"(column {column})" in str(refused.value)


def test_sorts_and_positions_are_checked() -> None:
    assert make_query("dead", {}, "finished").sort == "finished"
    with pytest.raises(QueryRejected, match="Did you mean finished"):
        make_query("dead", {}, "finish")
    assert position(position_text(7)) == (7, None)
    assert position(position_text(7, 1.5e9)) == (7, 1.5e9)
    for wrong in ("", "x", "-1", "7:", "7:x", "9" * 30):
        with pytest.raises(QueryRejected):
            position(wrong)
    with pytest.raises(QueryRejected, match="another order"):
        continued(JobQuery(sort="due"), "7")


def test_words_about_states_are_told_from_the_others() -> None:
    text = "state:dead task:send_* 'some text' -ready group:'g 1'"
    assert without_states(text) == ("task:send_* 'some text' group:'g 1'", ["state:dead", "-ready"])


class Counted(str):
    """Text that counts how often a character of it is read."""

    read = 0

    def __getitem__(self, place: object) -> str:
        Counted.read += 1
        return str.__getitem__(self, place)  # type: ignore[index]


@pytest.mark.parametrize("piece", ["a ", "a,", "'", '" ', "\\", "task:", "-", "*", "a:b,c*d "])
def test_reading_is_linear_in_the_length(piece: str) -> None:
    """By looks at the text, not by time."""
    looks = []
    for length in (1000, 80_000):
        text, Counted.read = Counted(piece * (length // len(piece))), 0
        try:
            words = list(words_of(text))
            assert sum(len(word.split(",")) + len(word.split("*")) for word in words) < 4 * length
        except QueryRejected:
            pass
        looks.append(Counted.read)
    assert looks[1] <= 81 * looks[0] + 100


@given(st.text(alphabet=string.ascii_letters + string.digits + " :,-*'\"\\<>=._", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    column: int | None = None
    try:
        matches(parse_query(text), job(errors=(Failure(text="no"),)), 1.0)
    except QueryRejected as refused:
        column = refused.column
    assert column is None or 1 <= column <= len(text) + 1


@given(st.text(alphabet="ab*", max_size=8), st.text(alphabet="ab", max_size=8))
def test_a_pattern_fits_as_fnmatch_says(pattern: str, text: str) -> None:
    from fnmatch import fnmatchcase

    assert fits(tuple(pattern.split("*")), text) == fnmatchcase(text, pattern)


def test_arguments_that_cannot_be_read_match_nothing() -> None:
    query = parse_query("args.a:1")
    assert not matches(query, job(args=b"{"), 0.0)
    assert not matches(query, job(args=b"[" * 100_000), 0.0)
    assert matches(query, job(args=b'{"a": 1}'), 0.0)
    assert matches(parse_query("args.a:9007199254740993"), job(args=b'{"a": 9007199254740993}'), 0.0)
