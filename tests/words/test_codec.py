"""Arguments and results: what travels, what is refused before a byte is written, and what survives a deploy."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import inspect
import json
import sys
import types
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.codec import DEPTH_MAX, Codec, encode_unseen, read_parameters
from holdfast.context import Context
from holdfast.errors import ConfigurationError, InvalidArguments, InvalidResult

if TYPE_CHECKING:
    from somewhere import Unseen  # type: ignore[import-not-found]

LIMIT = 1 << 20


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    then: Point | None = None


class Shape(msgspec.Struct, frozen=True):
    corners: tuple[int, ...]


class Pair(NamedTuple):
    a: int
    b: str


class Words(TypedDict, total=False):
    hello: str


def codec(fn: Callable[..., Any]) -> Codec:
    return Codec("t", fn, read_parameters(fn, "t")[1])


def travel(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    one = codec(fn)
    return one.decode(one.encode(one.bind(args, kwargs), LIMIT))


def refusal(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        travel(fn, *args, **kwargs)
    assert caught.value.task == "t"
    return str(caught.value)


def one_of(annotation: Any) -> Callable[..., Any]:
    def handler(value): ...  # type: ignore[no-untyped-def]

    handler.__annotations__ = {"value": annotation}
    return handler


NOW = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**63),
        (int, -(2**200)),
        (int, 10**4299),
        (int, -(10**4298)),
        (float, 1.5),
        (float, 5e-324),
        (float, -1.7976931348623157e308),
        (bool, True),
        (str, "grüße\0"),
        (bytes, b"\x00\xff"),
        (int | None, None),
        (Point, Point(1, Point(2))),
        (Shape, Shape((1, 2))),
        (Pair, Pair(1, "x")),
        (Words, {"hello": "you"}),
        (dt.datetime, NOW),
        (dt.datetime, dt.datetime(2026, 1, 1)),
        (dt.date, dt.date(2026, 1, 2)),
        (dt.time, dt.time(1, 2, 3)),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=7)),
        (uuid.UUID, uuid.UUID(int=7)),
        (Color, Color.RED),
        (Level, Level.LOW),
        (Decimal, Decimal("1.10")),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (tuple[int, str], (1, "x")),
        (tuple[int, ...], (1, 2, 3)),
        (dict[int, list[Point]], {1: [Point(1)]}),
        (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}),
        (list[Point | None], [None, Point(3)]),
        (Literal["a", "b"], "a"),
        (Annotated[int, msgspec.Meta(gt=0)], 3),
        (Path, Path("a/b")),
        (Path | None, None),
        (Any, {"a": [1, 2.5, None, True, "x"]}),
    ],
)
def test_a_value_arrives_as_it_was_given(annotation: Any, value: Any) -> None:
    arrived = travel(one_of(annotation), value)["value"]
    assert arrived == value
    assert type(arrived) is type(value)


def test_an_int_too_long_to_be_read_back_is_refused() -> None:
    """With its sign it has one character more than the decoder takes."""
    assert "'value'" in refusal(one_of(int), -(10**4299))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_any_plain_json_arrives_in_an_unannotated_parameter(value: Any) -> None:
    def handler(value): ...  # type: ignore[no-untyped-def]

    assert travel(handler, value)["value"] == value


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "7", "expected `int`, got `str`"),
        (int, True, "expected `int`, got `bool`"),
        (int, None, "expected `int`, got `null`"),
        (str, 7, "expected `str`"),
        (str, NOW, "expected `str`, got `datetime`"),
        (str, uuid.UUID(int=7), "expected `str`, got `UUID`"),
        (str, b"x", "expected `str`, got `bytes`"),
        (str | None, Decimal(1), "expected `str`, got `Decimal`"),
        (list[int], [1, "x"], "at `value[1]`"),
        (Point, {"x": "no"}, "at `value.x`"),
        (Color, "secret-value", "invalid enum value"),
        (Annotated[int, msgspec.Meta(gt=0)], -3, ">= 1"),
        (dt.datetime, "yesterday", "invalid"),
        (object, NOW, "plain JSON"),
        (Any, {1: 2}, "keys that are not str"),
        (Any, [{"a": {1}}], "type set"),
        (complex, 1j, "complex"),
        (Callable, print, "builtin_function_or_method"),
        (types.ModuleType, {}, "cannot be rebuilt"),
    ],
)
def test_a_wrong_value_is_refused_with_its_parameter(annotation: Any, value: Any, said: str) -> None:
    text = refusal(one_of(annotation), value)
    assert "'value'" in text or "cannot be rebuilt" in text
    assert said in text
    assert "secret-value" not in text


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("annotation", [float, float | None, Any, list[float | None], dict[str, Any]])
def test_nan_and_infinity_are_refused_wherever_they_hide(annotation: Any, number: float) -> None:
    hidden: Any = {float: number, list[float | None]: [None, number], dict[str, Any]: {"a": [number]}}
    value = hidden.get(annotation, number)
    assert "NaN" in refusal(one_of(annotation), value)


def test_nan_inside_a_dataclass_is_refused() -> None:
    @dataclasses.dataclass
    class Reading:
        value: float | None

    assert "NaN" in refusal(one_of(Reading), Reading(float("nan")))


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    def handler(value: list[Any], other: int = 0) -> None: ...

    assert travel(handler, nested(DEPTH_MAX))
    assert "levels deep" in refusal(handler, nested(DEPTH_MAX + 1))
    assert "levels deep" in refusal(handler, nested(100_000))
    loop: list[Any] = []
    loop.append(loop)
    assert "contains itself" in refusal(handler, loop)


def test_many_brackets_in_text_or_side_by_side_are_not_depth() -> None:
    def handler(value): ...  # type: ignore[no-untyped-def]

    assert travel(handler, '[{"' * 1000 + "\\" * 7)
    assert travel(handler, [[] for _ in range(1000)])
    assert travel(handler, [{"a": ['"[[']} for _ in range(200)])


@given(st.integers(1, 200), st.text(alphabet='[]{}"\\a'))
def test_depth_is_counted_exactly(levels: int, noise: str) -> None:
    def handler(value): ...  # type: ignore[no-untyped-def]

    value: Any = noise
    for _ in range(levels):
        value = [value, [noise]]
    if levels + 1 <= DEPTH_MAX:
        assert travel(handler, value)
    else:
        assert "levels deep" in refusal(handler, value)


def test_text_that_is_none_and_numbers_too_long_are_refused() -> None:
    assert "surrogate" in refusal(one_of(str), "a\ud800")
    assert "surrogate" in refusal(one_of(Any), {"\ud800": 1})
    assert "cannot be stored" in refusal(one_of(int), 10**5000)


def test_size_is_bounded_and_the_message_says_by_how_much() -> None:
    one = codec(one_of(str))
    assert len(one.encode({"value": "x" * 84}, 100)) == 96
    with pytest.raises(InvalidArguments, match="take 112 bytes, at most 100"):
        one.encode({"value": "x" * 100}, 100)


def test_binding_errors_name_the_parameters() -> None:
    def handler(to: str, *, subject: str, copies: int = 1) -> None: ...

    assert "missing 'to', 'subject'" in refusal(handler)
    assert "missing 'subject'" in refusal(handler, "ann")
    assert "at most 1 positional" in refusal(handler, "ann", "hi")
    assert "given twice" in refusal(handler, "ann", to="bob", subject="hi")
    assert "no parameter 'cc'" in refusal(handler, "ann", subject="hi", cc="bob")
    assert "it takes no arguments" in refusal(lambda: None, x=1)


def test_defaults_are_not_stored_and_are_the_handlers_of_today() -> None:
    def old(to: str, retries: int = 1) -> None: ...

    def new(*, retries: int = 5, to: str, urgent: bool = False) -> None: ...

    stored = codec(old).encode({"to": "ann"}, LIMIT)
    assert json.loads(stored) == {"to": "ann"}
    assert codec(new).decode(stored) == {"to": "ann"}


def test_a_parameter_that_is_gone_or_new_and_needed_is_refused_at_decode() -> None:
    def new(to: str) -> None: ...

    def needy(to: str, why: str) -> None: ...

    with pytest.raises(InvalidArguments, match="unknown field `cc`"):
        codec(new).decode(b'{"to": "ann", "cc": "bob"}')
    with pytest.raises(InvalidArguments, match="missing required field `why`"):
        codec(needy).decode(b'{"to": "ann"}')


@pytest.mark.parametrize("raw", [b"", b"nonsense", b"[1]", b"7", b"\xff", b'{"to": ' + b"[" * 5000, b'{"to":"\xff"}'])
def test_stored_bytes_that_are_no_arguments_are_refused_at_decode(raw: bytes) -> None:
    def handler(to: str) -> None: ...

    with pytest.raises(InvalidArguments):
        codec(handler).decode(raw)


def test_a_default_of_none_makes_none_acceptable() -> None:
    def handler(to: str = None): ...  # type: ignore[no-untyped-def,assignment]  # noqa: RUF013

    assert travel(handler, None) == {"to": None}


def test_an_annotation_that_cannot_be_resolved_takes_plain_json_only() -> None:
    def handler(count: int, thing: Unseen, other: Point | None = None) -> Unseen: ...

    assert travel(handler, 1, {"a": 1}, Point(1)) == {"count": 1, "thing": {"a": 1}, "other": Point(1)}
    text = refusal(handler, 1, Point(1))
    assert "'thing'" in text
    assert "NameError" in text
    assert "expected `int`" in refusal(handler, "x", 1)
    assert codec(handler).decode_value(b"[1]") == [1]


def test_a_union_json_cannot_tell_apart_takes_plain_json_only() -> None:
    assert travel(one_of(dt.datetime | uuid.UUID), "plain") == {"value": "plain"}
    assert "plain JSON" in refusal(one_of(dt.datetime | uuid.UUID), NOW)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda *args: None, "list parameter"),
        (lambda **kwargs: None, "dict parameter"),
        (lambda a, /: None, "remove the `/`"),
    ],
)
def test_parameters_that_cannot_be_stored_by_name_are_refused(fn: Callable[..., Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_parameters(fn, "t")


def test_a_leading_context_is_not_an_argument() -> None:
    def annotated(ctx: Context, to: str) -> None: ...

    def bare(ctx, to): ...  # type: ignore[no-untyped-def]

    def other(ctx: dict[str, int]) -> None: ...

    def late(to: str, ctx: Context) -> None: ...

    for fn in (annotated, bare):
        wants, parameters = read_parameters(fn, "t")
        assert wants
        assert list(parameters) == ["to"]
    assert read_parameters(other, "t")[0] is False
    with pytest.raises(ConfigurationError, match="first parameter"):
        read_parameters(late, "t")


def test_a_context_known_only_to_the_type_checker_is_recognised() -> None:
    def handler(mail: Any) -> None: ...

    handler.__annotations__ = {"mail": "holdfast_types.Context"}
    assert read_parameters(handler, "t")[0] is True


def test_an_unevaluated_annotation_is_looked_at_by_its_name() -> None:
    def handler(mail: Any, to: Any) -> None: ...

    handler.__annotations__ = {"mail": ForwardRef("Context"), "to": ForwardRef("Nobody")}
    assert read_parameters(handler, "t")[0] is True
    assert travel(handler, "ann") == {"to": "ann"}


def test_a_result_is_bounded_and_rebuilt_by_the_return_annotation() -> None:
    def handler() -> list[Point]:
        return []

    one = codec(handler)
    raw = one.encode_value([Point(1)], LIMIT)
    assert one.decode_value(raw) == [Point(1)]
    assert one.decode_value(b'"something else"') == "something else"
    with pytest.raises(InvalidResult, match="it takes"):
        one.encode_value("x" * 100, 50)
    for wrong in (float("nan"), object(), nested(DEPTH_MAX + 1), "\ud800"):
        with pytest.raises(InvalidResult, match="result of"):
            one.encode_value(wrong, LIMIT)


def test_a_producer_without_the_code_may_give_positions() -> None:
    def handler(page: int, size: str = "a4", *, color: bool = False) -> None: ...

    one = codec(handler)
    assert one.decode(encode_unseen("t", (7,), {"color": True}, LIMIT)) == {"page": 7, "color": True}
    assert one.decode(encode_unseen("t", (), {"page": 7}, LIMIT)) == {"page": 7}
    for args, kwargs in (((7, "a4", 3), {}), ((7,), {"page": 8}), (("x",), {}), ((), {}), ((7,), {"cc": 1})):
        with pytest.raises(InvalidArguments):
            one.decode(encode_unseen("t", args, kwargs, LIMIT))
    for wrong in (float("nan"), object(), nested(DEPTH_MAX + 3)):
        with pytest.raises(InvalidArguments):
            encode_unseen("t", (wrong,), {}, LIMIT)
    with pytest.raises(InvalidArguments, match="at most 10"):
        encode_unseen("t", ("x" * 100,), {}, 10)
    with pytest.raises(InvalidArguments):
        one.decode(b'{"*": 5}')


def test_a_django_model_is_refused_with_the_advice_to_pass_its_key() -> None:
    model = type("Model", (), {"__module__": "django.db.models.base"})
    user = type("User", (model,), {"__module__": "shop.models"})
    assert "pass the pk" in refusal(one_of(Any), user())
    assert "pass the pk" in refusal(one_of(user), user())
    assert "pass the pk" in refusal(one_of(user), {"id": 7})


def fake_pydantic(monkeypatch: pytest.MonkeyPatch) -> type:
    """A stand-in with the two methods we call, so that the path is tested where pydantic is not installed."""

    class Model:
        __module__ = "pydantic.main"

        def __init__(self, age: int) -> None:
            self.age = age

        def model_dump(self, mode: str) -> dict[str, Any]:
            assert mode == "json"
            return {"age": self.age}

        @classmethod
        def model_validate(cls, value: Any) -> Any:
            if not isinstance(value, dict) or not isinstance(value.get("age"), int):
                raise ValueError("secret-value is not an age")
            return cls(value["age"])

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Model) and other.age == self.age

        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setitem(sys.modules, "pydantic", None)  # importing it would fail: we must not
    return Model


def test_pydantic_models_travel_without_us_importing_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fake_pydantic(monkeypatch)
    assert travel(one_of(model), model(3)) == {"value": model(3)}
    text = refusal(one_of(model), model("secret-value"))
    assert "refused it" in text
    assert "secret-value" not in text


def test_a_real_pydantic_model_travels() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Person", age=(int, ...), born=(dt.date, ...))
    person = model(age=3, born=dt.date(2026, 1, 2))
    assert travel(one_of(model), person) == {"value": person}
    assert travel(one_of(list.__class_getitem__(model)), [person]) == {"value": [person]}
    text = refusal(one_of(model), {"age": "secret-value", "born": "2026-01-02"})
    assert "age" in text
    assert "secret-value" not in text


def test_reading_a_signature_follows_wrapped_functions() -> None:
    import functools

    def plain(point: Point) -> None: ...

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert list(inspect.signature(wrapper).parameters) == ["point"]
    assert travel(wrapper, Point(2)) == {"point": Point(2)}


class Marked(str):
    """As frameworks mark text that needs no escaping."""

    def __str__(self) -> str:
        return "something else"


class Counted(int): ...


class Measured(float): ...


def test_subclasses_of_plain_values_travel_as_plain_values() -> None:
    def run(a: str, b: int, c: float, d: Any, e: list[str]) -> None: ...

    made = codec(run)
    values = (Marked("m"), Counted(3), Measured(1.5), {"x": Measured(2.5)}, [Marked("n")])
    back = made.decode(made.encode(made.bind(values, {}), LIMIT))
    assert back == {"a": "m", "b": 3, "c": 1.5, "d": {"x": 2.5}, "e": ["n"]}
    assert [type(value) for value in back.values()] == [str, int, float, dict, list]
    with pytest.raises(InvalidArguments, match="NaN"):
        made.encode(made.bind((*values[:2], Measured("nan"), *values[3:]), {}), LIMIT)


@dataclasses.dataclass
class Parcel:
    weight: int


@dataclasses.dataclass
class Letter(Parcel):
    stamp: str = "none"


class Sized(TypedDict):
    width: int


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        (Parcel, Letter(1, "rare"), "a subclass, whose own fields would be lost"),
        (Parcel | None, Letter(1, "rare"), "a subclass, whose own fields would be lost"),
        (dict, {1: "one"}, "not all of its keys would keep"),
        (dict[str, str], {1: "one"}, "not all of its keys would keep"),
        (Sized, {"width": 1, "height": 2}, "not all of its keys would keep"),
    ],
)
def test_what_would_arrive_as_something_else_is_refused(annotation: Any, value: Any, why: str) -> None:
    def run(a: Any) -> None: ...

    run.__annotations__["a"] = annotation
    made = codec(run)
    with pytest.raises(InvalidArguments, match=why):
        made.encode({"a": value}, LIMIT)


def test_keys_of_an_annotated_type_arrive() -> None:
    def run(a: dict[int, str], b: dict[Level, int], c: dict[uuid.UUID, int]) -> None: ...

    given = {"a": {1: "one"}, "b": {Level.LOW: 1}, "c": {uuid.uuid4(): 1}}
    made = codec(run)
    assert made.decode(made.encode(given, LIMIT)) == given


# ---------------------------------------------------------------------- what would change on its way


@dataclasses.dataclass
class Item:
    x: int
    when: dt.datetime | None = None


@dataclasses.dataclass
class RichItem(Item):
    z: int = 5


class Box(msgspec.Struct):
    items: list[Item]


class RichBox(Box):
    more: int = 1


AMSTERDAM = dt.timezone(dt.timedelta(minutes=19, seconds=32))
ODD = dt.datetime(1900, 1, 1, tzinfo=AMSTERDAM)


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        (list[Item], [Item(1), RichItem(1, z=7)], "`RichItem`, a subclass"),
        (tuple[Item, ...], (RichItem(1),), "`RichItem`, a subclass"),
        (dict[str, list[Item]], {"a": [RichItem(1)]}, "`RichItem`, a subclass"),
        (Item | None, RichItem(1), "`RichItem`, a subclass"),
        (Box, Box([RichItem(1)]), "`RichItem`, a subclass"),
        (list[Box], [RichBox([])], "`RichBox`, a subclass"),
        (list[str], ["a", ODD.replace(tzinfo=dt.UTC)], "expected `str`, got `datetime`"),
        (dt.datetime, ODD, "UTC offset has seconds"),
        (dt.time, dt.time(1, 2, tzinfo=AMSTERDAM), "UTC offset has seconds"),
        (Item, Item(1, ODD), "UTC offset has seconds"),
        (dict[str, dt.datetime], {"a": ODD}, "UTC offset has seconds"),
        (set[dt.datetime], {ODD}, "not all of its members"),
    ],
)
def test_what_would_arrive_as_something_else_is_refused_however_deep(kind: Any, value: object, fault: str) -> None:
    def fn(x: Any) -> None: ...

    fn.__annotations__ = {"x": kind}
    with pytest.raises(InvalidArguments, match=fault):
        Holdfast("memory://").task(name="t")(fn).bind(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[Item], [Item(1, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), Item(2)]),
        (Box, Box([Item(1)])),
        (dict[str, Box], {"a": Box([])}),
        (dt.datetime, dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30)))),
        (dt.datetime, dt.datetime(2020, 1, 1)),
        (dt.time, dt.time(1, 2)),
        (set[int], {1, 2}),
        (dict[int, list[str]], {1: ["a"]}),
    ],
)
def test_what_arrives_as_it_is_passes_however_deep(kind: Any, value: object) -> None:
    def fn(x: Any) -> None: ...

    fn.__annotations__ = {"x": kind}
    task = Holdfast("memory://").task(name="t")(fn)
    assert task._decode(task.bind(value).new.args)["x"] == value
