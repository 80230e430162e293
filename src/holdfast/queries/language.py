"""The query language: text such as `state:dead queue:mail task:send_* age:>1h -group:x "some text"` to a `JobQuery`.

Called by the app, the command line and the dashboard. Pure, and linear in the length of the text. What cannot be read
raises QueryRejected, which names the column and, where there is one, what may have been meant.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from ..clock import duration_seconds
from ..errors import ConfigurationError, QueryRejected
from ..lazy import import_lazily
from ..lifecycle import State
from ..names import check_list, check_name, plain, shown
from ..records import SORTS, Comparison, Condition, JobQuery, Wanted
from .match import NUMBERS, SPANS
from .pages import GROUPINGS, Grouping

if TYPE_CHECKING:
    import difflib
else:
    import_lazily(globals(), "difflib")

QUERY_LENGTH_MAX = 4000  # characters in a query given as text
FIELDS = (
    *("state", "queue", "task", "group", "key", "id", "worker", "reason", "error", "args", "header", "tag", "text"),
    *("age", "wait", "running", "due", "finished", "attempts", "failures", "stalls", "priority"),
)
_NAMES = ("queue", "task", "group", "key", "worker")  # fields of JobQuery for one exact name
_PATHS = ("args", "header")  # fields followed by a dot and a name
_STATE_WORDS = (*State, "live", "finished")
_OPS: tuple[Comparison, ...] = ("<=", ">=", "<", ">", "=")
_NUMBER = re.compile(r"[+-]?\d{1,300}(\.\d{1,300})?([eE][+-]?\d{1,3})?")


class Word(NamedTuple):
    """A word of a query without its quotes; `quoted` has a 1 for every character that was inside them."""

    text: str
    quoted: bytes
    column: int  # from 1
    end: int  # of the raw text

    def cut(self, start: int, stop: int | None = None) -> Word:
        """A part of it, at its own column. Exact unless quotes precede it."""
        return Word(self.text[start:stop], self.quoted[start:stop], self.column + start, self.end)

    def places(self, character: str) -> Iterator[int]:
        """Where that character stands outside quotes."""
        return (at for at, one in enumerate(self.text) if one == character and not self.quoted[at])

    def split(self, character: str) -> list[Word]:
        """The parts between such characters outside quotes."""
        bounds = [-1, *self.places(character), len(self.text)]
        return [self.cut(start + 1, stop) for start, stop in itertools.pairwise(bounds)]


def words_of(text: str) -> Iterator[Word]:
    """The words of a query. Quotes and a backslash work as in a shell."""
    at, length = 0, len(text)
    while at < length:
        if text[at].isspace():
            at += 1
            continue
        start, characters, quoted, quote = at, [], bytearray(), ""
        while at < length and (quote or not text[at].isspace()):
            one = text[at]
            if one == "\\" and quote != "'" and at + 1 < length and (not quote or text[at + 1] in '"\\'):
                at += 1
                characters.append(text[at])
                quoted.append(1)
            elif one == quote:
                quote = ""
            elif not quote and one in "'\"":
                quote, opened = one, at
            else:
                characters.append(one)
                quoted.append(bool(quote))
            at += 1
        if quote:
            raise QueryRejected(f"the query cannot be read: a {quote} is not closed.", opened + 1)
        yield Word("".join(characters), bytes(quoted), start + 1, at)


def parse_query(text: str) -> JobQuery:
    """Parse a query given as text. A bare word is a state or an end of an id; in quotes it is text to look for."""
    text = plain(text)
    if len(text) > QUERY_LENGTH_MAX:
        raise QueryRejected(f"the query has {len(text)} characters; at most {QUERY_LENGTH_MAX} are read. Shorten it.")
    for at, one in enumerate(text):
        if not one.isprintable() and not one.isspace():
            raise QueryRejected(f"the query has a character that cannot be shown (U+{ord(one):04X}).", at + 1)
    reading = _Reading()
    for word in words_of(text):
        reading.take(word)
    return reading.query()


class _Reading:
    """What was read of a query so far."""

    def __init__(self) -> None:
        self._states: list[State] | None = None
        self._fields: dict[str, Any] = {}
        self._more: list[Condition] = []

    def take(self, word: Word) -> None:
        negated = word.text.startswith("-") and not word.quoted[0] and len(word.text) > 1
        inner = word.cut(1) if negated else word
        colon = next(inner.places(":"), -1)
        if colon < 0 and inner.text.partition(":")[0] in FIELDS:
            colon = inner.text.find(":")  # the whole condition in quotes
        if colon < 0:
            self._bare(inner, negated)
            return
        name, value = inner.text[:colon], inner.cut(colon + 1)
        field, dot, _ = name.partition(".")
        if field not in FIELDS or (dot and field not in _PATHS):
            near = _nearest(field, FIELDS)
            known = ", ".join(f"{one}:" for one in FIELDS)
            raise QueryRejected(
                f"{shown(name)} is not a condition. Conditions: {known}", inner.column, near and f"{near}:"
            )
        if not value.text:
            raise QueryRejected(f"{name}: has no value. Write {name}:{_EXAMPLES.get(field, 'NAME')}.", inner.column)
        path = [part.text for part in inner.cut(0, colon).split(".")[1:]]
        if dot and not all(path):
            raise QueryRejected("a name is missing after the dot. Write args.user.id:42.", inner.column)
        if field == "header" and not dot:
            raise QueryRejected("header: needs the header's name. Write header.tenant:acme.", inner.column)
        self._condition(field, tuple(path), value, negated)

    def _bare(self, word: Word, negated: bool) -> None:
        if not word.text:
            return
        if all(part.text in _STATE_WORDS for part in word.split(",")):
            self._condition("state", (), word, negated)
        elif all(word.quoted):
            self._condition("text", (), word, negated)
        elif word.text.isalpha() and (near := _nearest(word.text, _STATE_WORDS, 0.75)):
            raise QueryRejected(
                f"{shown(word.text)} is not a state. An id that looks like one is written id:{word.text}.",
                word.column,
                near,
            )
        else:
            self._condition("id", (), word, negated)

    def _condition(self, field: str, path: tuple[str, ...], value: Word, negated: bool) -> None:
        values = value.split(",")
        if any(not one.text for one in values):
            raise QueryRejected("a value is missing beside a comma.", value.column)
        if field == "state":
            self._narrow(_states_of(values), negated)
        elif field == "id" and not negated and "id_ends" not in self._fields:
            self._fields["id_ends"] = tuple(check_name(one.text, "id") for one in values)
        elif (
            field in _NAMES
            and not negated
            and field not in self._fields
            and len(values) == 1
            and next(value.places("*"), None) is None
        ):
            self._fields[field] = check_name(value.text, field)
        else:
            tests = tuple(_wanted(field, field == "args" and bool(path), one) for one in values)
            self._more.append(Condition(field=field, tests=tests, path=path, negated=negated))

    def _narrow(self, states: Iterable[State], negated: bool) -> None:
        chosen = set(states)
        before = list(State) if self._states is None else self._states
        self._states = [state for state in before if (state in chosen) is not negated]

    def query(self) -> JobQuery:
        more = self._more
        if self._states is not None and not self._states:  # no job is in two states at once
            more = [*more, Condition(field="id", tests=())]
        return JobQuery(states=tuple(self._states or ()), more=tuple(more), **self._fields)


_EXAMPLES = {
    **dict.fromkeys(SPANS, ">1h"),
    **dict.fromkeys(NUMBERS, ">3"),
    "state": "dead",
    "error": "Timeout",
    "header": "acme",
    "args": '"text in it"',
    "id": "0a1b2c3d",
    "tag": "vip",
}


def _nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    close = difflib.get_close_matches(word[:40].lower(), list(known), n=1, cutoff=cutoff)
    return close[0] if close else None


def _states_of(values: Iterable[Word]) -> list[State]:
    states: list[State] = []
    for word in values:
        if word.text in ("live", "finished"):
            states += [state for state in State if state.finished == (word.text == "finished")]
        elif word.text in State.__members__.values():
            states.append(State(word.text))
        else:
            raise QueryRejected(
                f"there is no state {shown(word.text)}. States: {', '.join(State)}; live and finished stand for "
                "several.",
                word.column,
                _nearest(word.text, _STATE_WORDS),
            )
    return list(dict.fromkeys(states))


def parse_states(text: str) -> tuple[State, ...]:
    """Parse `ready,running` into states; `live` and `finished` expand to their members."""
    return tuple(_states_of(Word(text, bytes(len(text)), 1, len(text)).split(",")))


def _wanted(field: str, has_path: bool, value: Word) -> Wanted:
    """One value of a condition."""
    is_number = field in NUMBERS or field in SPANS
    op: Comparison = "="
    if is_number or has_path:
        op = next((one for one in _OPS if value.text.startswith(one) and not any(value.quoted[: len(one)])), "=")
        bare = value.cut(len(op)) if value.text.startswith(op) else value
    else:
        bare = value
    number = duration_seconds(bare.text) if field in SPANS else _number(bare)
    if is_number and number is None:
        kind = "duration such as 90s, 15m, 2h, 7d" if field in SPANS else "whole number"
        raise QueryRejected(
            f"{field}: takes a {kind}, not {shown(bare.text)}. Write {field}:{_EXAMPLES[field]}.", value.column
        )
    if field in SPANS and op == "=":
        raise QueryRejected(f"{field}: needs a comparison, > or <.", value.column, f"{field}:>{bare.text}")
    if has_path and op != "=" and number is None:
        raise QueryRejected(f"only numbers are compared with {op}, not {shown(bare.text)}.", value.column)
    literal = field in ("args", "text", "id") and not has_path
    parts = (bare.text,) if literal else tuple(part.text for part in bare.split("*"))
    return Wanted(op=op, parts=parts, number=number)


def _number(word: Word) -> float | None:
    if any(word.quoted) or not _NUMBER.fullmatch(word.text):
        return None
    number = float(word.text)
    return number if math.isfinite(number) else None


def make_query(
    query: str | JobQuery | None, filters: Mapping[str, Any], sort: str | None = None, after: str | None = None
) -> JobQuery:
    """Build a query from text (`state:ready queue:mail`), keyword filters, or both; keywords take precedence."""
    if query is not None and not isinstance(query, str | JobQuery):
        raise ConfigurationError(f"a query is text such as 'state:ready queue:mail', not {type(query).__name__}.")
    chosen = query if isinstance(query, JobQuery) else parse_query(query or "")
    fields = {name: getattr(chosen, name) for name in JobQuery.__struct_fields__}
    for name, value in filters.items():
        if name in ("state", "states"):
            listed = check_list(value, f"{name}=")
            fields["states"] = tuple(state for text in listed for state in parse_states(str(text)))
        elif name in (*_NAMES, "id_prefix"):
            fields[name] = getattr(value, "name", value)
        else:
            near = _nearest(name, ("state", *_NAMES, "id_prefix"))
            raise ConfigurationError(
                f"jobs() has no filter {name!r}. Filters: state, {', '.join(_NAMES)}, id_prefix; "
                f"other conditions are written in the query.{f' Did you mean {near}?' if near else ''}"
            )
    for name in (*_NAMES, "id_prefix"):
        if fields[name] is not None:
            fields[name] = check_name(fields[name], name)
    if sort is not None:
        if sort not in SORTS:
            raise QueryRejected(f"sort={shown(sort)}: sorts are {', '.join(SORTS)}.", None, _nearest(str(sort), SORTS))
        fields["sort"] = sort
    if after is not None and not isinstance(after, str):
        raise QueryRejected(f"after= is a position as text, not {type(after).__name__}.")
    return continued(JobQuery(**fields), after)


def check_grouping(by: str | None) -> Grouping | None:
    """What to count by, if it is one of GROUPINGS."""
    found = next((one for one in GROUPINGS if one == by), None)
    if found is None and by is not None:
        near = _nearest(str(by), GROUPINGS)
        raise QueryRejected(f"by={shown(by)}: jobs are counted by {', '.join(GROUPINGS)}.", None, near)
    return found


def without_states(text: str) -> tuple[str, list[str]]:
    """A query's text without its words about states, and these words; for pages that show states beside it."""
    others: list[str] = []
    about: list[str] = []
    for word in words_of(text):
        raw = text[word.column - 1 : word.end]
        bare = word.text.removeprefix("-")
        is_state = bare.startswith("state:") or all(part in _STATE_WORDS for part in bare.split(","))
        (about if is_state else others).append(raw)
    return " ".join(others), about


# ----------------------------------------------------------------------------------------------------------------------
# Positions: where a page ended, as text that people and programs pass back.


def position_text(seq: int, value: float | None = None) -> str:
    """A position as text: the seq and, with a sort, the value there."""
    return str(seq) if value is None else f"{seq}:{value!r}"


def position(text: str) -> tuple[int, float | None]:
    """The position that was written as this text."""
    seq, colon, value = text.partition(":")
    if re.fullmatch(r"\d{1,18}", seq) and (not colon or _NUMBER.fullmatch(value)):
        return int(seq), float(value) if colon else None
    raise QueryRejected(f"after={shown(text)} is not a position. Give the one that the previous page named.")


def continued(query: JobQuery, after: str | None) -> JobQuery:
    """The same query, from that position on."""
    if after is None:
        return query
    seq, value = position(after)
    if (value is None) is not (query.sort == "created"):
        raise QueryRejected(f"after={shown(after)} is a position in another order. Use the sort that it came from.")
    return replace(query, before=seq, beyond=value)
