"""Arguments and results as JSON: bound by name, validated, encoded, and rebuilt from annotations.

Called by tasks at enqueue and by the worker before and after a handler runs. Never pickles, never logs a value, and no
error message contains one. Everything is validated before anything is sent: `decode` accepts whatever `encode` returns.

Annotations are resolved at first use. A parameter whose annotation is missing, cannot be resolved or is not a type
JSON can represent accepts plain JSON values only (str, int, float, bool, None, lists, tuples, which arrive as lists,
and dicts with str keys). Anything else is rejected by name rather than reaching the handler as a different type.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time
from pathlib import PurePath
from typing import Any, TypeVar, Union

import msgspec

from .context import Context
from .errors import ConfigurationError, InvalidArguments, InvalidResult
from .placeholders import KEY, MARK, AwaitsResults, Placeholder

T = TypeVar("T")

DEPTH_MAX = 64
SURE_BITS = 64  # a longer int may have more digits than the decoder takes
STAR = "*"  # the stored name of positional arguments from a producer that does not know the parameters

_AT_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ROUND_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_LISTS = (list, tuple, Sequence)
_ATOMS = frozenset({str, int, float, bool, type(None)})
_PLAIN: Any = ((str, str.__str__), (int, int.__int__), (float, float.__float__))


class Refused(Exception):
    """A value that cannot be encoded, with the reason; becomes InvalidArguments once the task's name is known."""


def _origin_modules(kind: type) -> set[str]:
    return {parent.__module__.partition(".")[0] for parent in kind.__mro__}


def _is_pydantic(kind: type) -> bool:
    # Checked through the type's own ancestry, so that we never import pydantic.
    return hasattr(kind, "model_validate") and "pydantic" in _origin_modules(kind)


def _is_django_model(kind: type) -> bool:
    return any(parent.__module__ == "django.db.models.base" for parent in kind.__mro__)


def _is_queryset(kind: type) -> bool:
    return any(parent.__module__ == "django.db.models.query" for parent in kind.__mro__)


def _is_lazy(kind: type, name: str) -> bool:
    return any(one.__name__ == name and one.__module__ == "django.utils.functional" for one in kind.__mro__)


def _is_lazy_text(kind: type) -> bool:
    """Whether it is Django's lazy text (gettext_lazy): stored as it reads in the language active at enqueue."""
    return _is_lazy(kind, "Promise")


def _django_fault(value: Any) -> str | None:
    """Why one of Django's objects cannot be passed, and what to pass instead; None for any other object."""
    kind = type(value)
    lazy = _is_lazy(kind, "LazyObject")  # request.user: its class is that of the wrapped object
    seen = value.__class__ if lazy else kind
    if _is_django_model(seen):
        return f"a Django model ({seen.__name__}) cannot be stored: pass the pk and load it in the task"
    if _is_queryset(kind):
        return f"a Django {kind.__name__} cannot be stored: pass a list of primary keys and load them in the task"
    return f"a {kind.__name__} of Django cannot be stored: pass the value it stands for" if lazy else None


def _encode_hook(value: Any) -> Any:
    kind = type(value)
    fault = _django_fault(value)
    if fault is not None:
        raise Refused(fault)
    for parent, as_plain in _PLAIN:  # subclasses, e.g. markup strings: stored as the plain value, whatever they define
        if isinstance(value, parent):
            return as_plain(value)
    if _is_pydantic(kind):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    if _is_lazy_text(kind):
        return str(value)
    if kind is Placeholder:
        raise AwaitsResults(value)
    raise Refused(
        f"a value of type {kind.__qualname__} cannot be stored as JSON: "
        "pass plain values, a dataclass, or an id to load it by"
    )


def _decode_hook(kind: type, value: Any) -> Any:
    if not isinstance(kind, type):
        raise Refused(f"{kind} cannot be rebuilt from JSON: annotate with a dataclass, a Struct or plain types")
    if _is_pydantic(kind):
        try:
            return kind.model_validate(value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise Refused(f"{kind.__name__} refused it: {_pydantic_faults(error)}") from None
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if _is_django_model(kind):
        raise Refused(f"a Django model ({kind.__name__}) cannot be stored: pass the pk and load it in the task")
    raise Refused(
        f"{kind.__qualname__} cannot be rebuilt from JSON: annotate with a dataclass, a Struct or plain types"
    )


def _pydantic_faults(error: ValueError) -> str:
    # Only the location and the kind of error: pydantic's own message quotes the input.
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return type(error).__name__
    faults = listed(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['type']}" for fault in faults[:3])


_FORMATS: Any = {"decimal_format": "string", "uuid_format": "canonical"}
_encoder = msgspec.json.Encoder(enc_hook=_encode_hook, **_FORMATS)
_plain_decoder = msgspec.json.Decoder()


def encode_json(value: Any, depth_max: int = DEPTH_MAX, hook: Callable[[Any], Any] | None = None) -> bytes:
    """`value` as JSON, or Refused. Checks depth and numbers; the caller checks the size."""
    encoder = _encoder if hook is None else msgspec.json.Encoder(enc_hook=hook, **_FORMATS)
    try:
        raw = encoder.encode(value)
    except (Refused, AwaitsResults):
        raise
    except RecursionError:
        raise Refused(f"it is nested more than {DEPTH_MAX} levels deep, or contains itself") from None
    except UnicodeEncodeError:
        raise Refused("it has a lone surrogate, which is not text: decode it properly first") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(f"it cannot be stored as JSON ({_without_values(str(error))})") from None
    check_depth(raw, depth_max)
    if b"null" in raw and _has_odd_number(msgspec.to_builtins(value, enc_hook=hook or _encode_hook)):
        raise Refused("it has a NaN or an infinity, which JSON cannot carry: pass None or a str")
    return raw


def check_depth(raw: bytes, depth_max: int = DEPTH_MAX) -> None:
    """Reject JSON nested too deeply. Counting brackets settles nearly every case at C speed."""
    if raw.count(b"[") + raw.count(b"{") <= depth_max:
        return
    marks = _STRINGS.sub(b"", raw).translate(_ROUND_TO_SQUARE, _NOT_BRACKETS)
    for _level in range(depth_max):
        if not marks:
            return
        marks = marks.replace(b"[]", b"")  # removes the innermost level
    if marks:
        raise Refused(f"it is nested more than {DEPTH_MAX} levels deep: flatten it")


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_odd_number, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_odd_number, value))
    return False


def _plain_fault(value: Any) -> str | None:
    """The name of the first type in `value` that would arrive as a different type; None if it is all plain JSON."""
    if value is None or isinstance(value, str | int | float) or _is_lazy_text(type(value)):
        return None
    if isinstance(value, list | tuple):
        return next((fault for entry in value if (fault := _plain_fault(entry)) is not None), None)
    if isinstance(value, Placeholder):
        raise AwaitsResults(value)
    if isinstance(value, dict):
        if any(not isinstance(name, str) for name in value):
            return "a dict with keys that are not str"
        return next((fault for entry in value.values() if (fault := _plain_fault(entry)) is not None), None)
    return f"a value of type {type(value).__qualname__}"


def _changed_on_the_way(value: Any, rebuilt: Any) -> str | None:
    """Why a value would reach the handler as something else although its JSON fits the annotation, or None."""
    kind, found = type(value), type(rebuilt)
    if found is kind:
        return None if kind in _ATOMS else _changed_within(value, rebuilt)
    # Many types encode as text, which would satisfy the annotation.
    if found is str and not isinstance(value, str) and not _is_lazy_text(kind):
        return f"expected `str`, got `{kind.__name__}`"
    if isinstance(value, found) and _field_names(kind) is not None:
        return f"expected `{found.__name__}`, got `{kind.__name__}`, a subclass, whose own fields would be lost"
    return None


def _changed_within(value: Any, rebuilt: Any) -> str | None:
    """Like `_changed_on_the_way`, for the parts of a value whose own type is unchanged."""
    if isinstance(value, list | tuple):
        if _ATOMS.issuperset(map(type, value)):
            return None  # the common case, decided at C speed
        pairs: Any = zip(value, rebuilt, strict=False)
    elif isinstance(value, dict):
        if value.keys() != rebuilt.keys():
            return "not all of its keys would keep their types: annotate them with their type, or make them str"
        if _ATOMS.issuperset(map(type, value.values())):
            return None
        pairs = ((value[name], rebuilt[name]) for name in value)
    elif isinstance(value, set | frozenset):
        return None if value == rebuilt else "not all of its members would keep their types"
    elif isinstance(value, datetime | time):
        if value.utcoffset() == rebuilt.utcoffset():
            return None
        return "its UTC offset has seconds, which would be cut off: convert it with .astimezone(UTC)"
    else:
        names = _field_names(type(value)) or ()
        pairs = ((getattr(value, name, None), getattr(rebuilt, name, None)) for name in names)
    return next((fault for pair in pairs if (fault := _changed_on_the_way(*pair)) is not None), None)


def _field_names(kind: type) -> Iterable[str] | None:
    """The field names of a dataclass, a Struct or an attrs class; None for any other type."""
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    if fields is None and hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__]
    return fields


def _without_values(text: str) -> str:
    return re.sub(r"(Invalid enum value) .*", r"\1", text.partition("\n")[0])


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """A function's signature. On Python 3.14+, annotations that cannot be evaluated yet stay unevaluated."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(fn)


def _annotations(fn: Callable[..., Any]) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(fn, format=annotationlib.Format.FORWARDREF)
    return dict(getattr(fn, "__annotations__", {}))


def _resolve(annotation: Any, space: dict[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return typing.get_type_hints(holder, globalns=space, include_extras=True)["it"]


def resolve_hints(fn: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A function's annotations as types, plus the reason for each one that cannot be resolved."""
    with contextlib.suppress(Exception):  # one bad annotation fails them all; if so, resolve them one by one
        return typing.get_type_hints(fn, include_extras=True), {}
    plain = inspect.unwrap(fn)
    space = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, annotation in _annotations(plain).items():
        try:
            hints[name] = _resolve(annotation, space)
        except Exception as error:  # evaluating a user's annotation may raise anything
            faults[name] = f"its annotation cannot be resolved ({type(error).__name__}: {error})"
    return hints, faults


def wants_context(fn: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    """Whether the first parameter is a Context: annotated as one, or named ctx without an annotation."""
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if annotation is inspect.Parameter.empty:
        return parameters[0].name == "ctx"
    return _is_context(fn, annotation)


def _is_context(fn: Callable[..., Any], annotation: Any) -> bool:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            annotation = _resolve(annotation, getattr(inspect.unwrap(fn), "__globals__", {}))
        except Exception:  # e.g. imported under `if TYPE_CHECKING:`; fall back to its spelling
            return bool(annotation.rpartition(".")[2] == "Context")
    return annotation is Context


_UNSTORABLE: Mapping[Any, str] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, but arguments are stored by name: remove the `/`",
    inspect.Parameter.VAR_POSITIONAL: "is variadic, but arguments are stored by name: take a list parameter instead. "
    "On a decorator's wrapper, put @functools.wraps",
    inspect.Parameter.VAR_KEYWORD: "is variadic, but parameters must be known: take a dict parameter instead. "
    "On a decorator's wrapper, put @functools.wraps",
}


def read_parameters(fn: Callable[..., Any], task: str) -> tuple[bool, dict[str, inspect.Parameter]]:
    """Whether a function takes a Context, and which parameters are stored; ConfigurationError if unsupported."""
    listed = list(signature_of(fn).parameters.values())
    context = wants_context(fn, listed)
    stored = listed[1:] if context else listed
    if context and listed[0].kind is listed[0].KEYWORD_ONLY:
        raise ConfigurationError(f"task {task!r}: Context must be the first positional parameter.")
    for parameter in stored:
        fault = _UNSTORABLE.get(parameter.kind)
        if fault is None and _is_context(fn, parameter.annotation):
            fault = "is a Context, which must be the first parameter"
        if fault is not None:
            raise ConfigurationError(f"task {task!r}: parameter {parameter.name!r} {fault}.")
    return context, {parameter.name: parameter for parameter in stored}


class Codec:
    """Codec for one function's arguments and result. Cheap to create; annotations are resolved on first use."""

    def __init__(
        self,
        task: str,
        fn: Callable[..., Any],
        parameters: Mapping[str, inspect.Parameter],
        results_of: Callable[..., Any] | None = None,
    ) -> None:
        self.task = task
        self._results_of = results_of  # a batch handler, which returns a list of results
        self.names = tuple(parameters)
        self._fn = fn
        self._parameters = parameters
        self._positional = tuple(name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY)
        self._known = frozenset(parameters)
        self._required = frozenset(name for name, p in parameters.items() if p.default is p.empty)
        self.defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._value_decoder: msgspec.json.Decoder[Any] = _plain_decoder
        self._untyped: dict[str, str] = {}
        self._fields: list[Any] = []  # of the decoder
        self._atoms: dict[str, type] = {}  # parameters that are annotated with str, int, float or bool and no more

    # ------------------------------------------------------------------ binding

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The given values by parameter name; defaults are not filled in."""
        if len(args) > len(self._positional):
            most = len(self._positional)
            raise InvalidArguments(self.task, f"it takes at most {most} positional arguments, {len(args)} were given")
        given = dict(zip(self._positional, args, strict=False))
        if kwargs:
            for name in kwargs:
                if name in given:
                    raise InvalidArguments(self.task, f"parameter {name!r} was given twice")
                if name not in self._known:
                    raise InvalidArguments(self.task, f"there is no parameter {name!r}; {self._listed()}")
            given.update(kwargs)
        for name in self._required:
            if name not in given:
                missing = ", ".join(repr(name) for name in self.names if name in self._required - given.keys())
                raise InvalidArguments(self.task, f"missing {missing}; {self._listed()}")
        return given

    def _listed(self) -> str:
        return f"its parameters are {', '.join(self.names)}" if self.names else "it takes no arguments"

    # ------------------------------------------------------------------ arguments

    def encode(self, given: Mapping[str, Any], bytes_max: int) -> bytes:
        """Bound values as one JSON object, validated against the annotations; raises InvalidArguments."""
        decoder = self._decoder or self._prepare()
        try:
            raw = encode_json(given, DEPTH_MAX + 1)  # the object holding all arguments is one level itself
        except Refused as refusal:
            raise InvalidArguments(self.task, self._blame(given, refusal)) from None
        if len(raw) > bytes_max:
            raise InvalidArguments(
                self.task,
                f"they take {len(raw)} bytes, at most {bytes_max} are allowed. Store the bulk elsewhere and pass its "
                "name, or raise args_bytes_max=",
            )
        for name, value in given.items():  # plain values of plain annotations arrive as they are
            kind = type(value)
            if kind is not self._atoms.get(name) or (kind is int and value.bit_length() > SURE_BITS):
                self._check_fit(given, raw, decoder)
                break
        return raw

    def encode_awaiting(self, given: Mapping[str, Any], bytes_max: int) -> tuple[bytes, tuple[str, ...]]:
        """Bound values with results of other jobs among them, and the ids of those. A parameter that holds one is
        validated when the result is there, the others now."""
        if self._decoder is None:
            self._prepare()
        known = {name: value for name, value in given.items() if not _awaits(value)}
        fields = [(name, Union[kind, msgspec.UnsetType], msgspec.UNSET) for name, kind, *_ in self._fields]  # noqa: UP007
        shape = msgspec.defstruct("Arguments", fields, kw_only=True)
        try:
            raw = encode_json(known, DEPTH_MAX + 1)
        except Refused as refusal:
            raise InvalidArguments(self.task, self._blame(known, refusal)) from None
        self._check_fit(known, raw, msgspec.json.Decoder(shape, dec_hook=_decode_hook))
        return encode_awaiting(self.task, given, bytes_max)

    def _check_fit(self, given: Mapping[str, Any], raw: bytes, decoder: msgspec.json.Decoder[Any]) -> None:
        for name in self._untyped:
            if name in given and (fault := _plain_fault(given[name])) is not None:
                raise InvalidArguments(
                    self.task,
                    f"parameter {name!r} was given {fault}, but {self._untyped[name]}, so it takes plain JSON "
                    "values only: annotate it with an importable type, or pass plain values",
                )
        rebuilt = self._decode(decoder, raw)
        for name, value in given.items():
            fault = _changed_on_the_way(value, getattr(rebuilt, name))
            if fault is not None:
                raise InvalidArguments(self.task, f"parameter {name!r}: {fault}")

    def _blame(self, given: Mapping[str, Any], refusal: Refused) -> str:
        """The refusal, naming the parameter that caused it: found by encoding the values one by one."""
        for name, value in given.items():
            try:
                encode_json(value)
            except Refused as own:
                return f"parameter {name!r}: {own}"
        return str(refusal)

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Stored arguments as keyword arguments for the function; missing ones are left to their defaults."""
        decoder = self._decoder or self._prepare()
        rebuilt = self._decode(decoder, raw)
        return {name: value for name in self.names if (value := getattr(rebuilt, name)) is not msgspec.UNSET}

    def _decode(self, decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
        try:
            return decoder.decode(raw)
        except Refused as refusal:
            raise InvalidArguments(self.task, str(refusal)) from None
        except msgspec.ValidationError as error:
            if f"unknown field `{STAR}`" in str(error):
                return self._decode(decoder, self._spread(raw))
            raise InvalidArguments(self.task, self._explain(error)) from None
        except RecursionError:
            raise InvalidArguments(self.task, "they are nested too deep") from None
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidArguments(self.task, f"they are not JSON we can read ({type(error).__name__})") from None

    def _spread(self, raw: bytes) -> bytes:
        """Name the positional arguments of a producer that did not know our parameters."""
        stored = _plain_decoder.decode(raw)
        values = stored.pop(STAR)
        if not isinstance(values, list):
            raise InvalidArguments(self.task, "their positional part is not a list")
        bound = self.bind(tuple(values), stored)
        return _encoder.encode(bound)

    def _explain(self, error: msgspec.ValidationError) -> str:
        text = _without_values(str(error))
        refusal = error.__cause__
        where = _AT_PATH.search(str(error))
        if isinstance(refusal, Refused):
            text = str(refusal)
        if where is None or not where[1]:
            return f"{text}; {self._listed()}"
        name = re.split(r"[.\[]", where[1], maxsplit=1)[0]
        inside = where[1][len(name) :]
        text = _AT_PATH.sub("", text)
        text = text[:1].lower() + text[1:] if not isinstance(refusal, Refused) else text
        return f"parameter {name!r}: {text}" + (f" at `{name}{inside}`" if inside else "")

    # ------------------------------------------------------------------ results

    def encode_value(self, value: Any, bytes_max: int) -> bytes:
        """A handler's return value as JSON; raises InvalidResult."""
        return encode_result(self.task, value, bytes_max)

    def decode_value(self, raw: bytes) -> Any:
        """A stored result, rebuilt from the return annotation, or plain JSON if it does not fit."""
        if self._decoder is None:
            self._prepare()
        try:
            return self._value_decoder.decode(raw)
        except (msgspec.MsgspecError, Refused, ValueError, RecursionError):
            return _plain_decoder.decode(raw)

    # ------------------------------------------------------------------ annotations, once

    def _prepare(self) -> msgspec.json.Decoder[Any]:
        hints, untyped = resolve_hints(self._fn)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for name, parameter in self._parameters.items():
            kind = hints.get(name, Any)
            if name not in hints:
                untyped.setdefault(name, "it has no annotation")
            elif kind is Any or kind is object:
                untyped[name] = f"its annotation is {'Any' if kind is Any else 'object'}"
            if parameter.default is None:
                kind = Union[kind, None]  # noqa: UP007 - `def f(x: int = None)`; `|` fails on string-like hints
            try:
                kind = kind if name in self._required else Union[kind, msgspec.UnsetType]  # noqa: UP007
                msgspec.json.Decoder(kind, dec_hook=_decode_hook)
            except Exception:  # msgspec raises TypeError, but an annotation may raise anything
                untyped[name] = "its annotation is not a type that can be rebuilt from JSON"
                kind = Any if name in self._required else Union[Any, msgspec.UnsetType]  # noqa: UP007
            fields.append((name, kind) if name in self._required else (name, kind, msgspec.UNSET))
        self._fields = fields
        self._atoms = {name: kind for name, kind in hints.items() if any(kind is atom for atom in _ATOMS)}
        shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._untyped = {name: why for name, why in untyped.items() if name in self._known}
        if self._results_of is not None:
            hints = {"return": _item_of(resolve_hints(self._results_of)[0].get("return", Any))}
        if "return" in hints:
            try:
                self._value_decoder = msgspec.json.Decoder(hints["return"], dec_hook=_decode_hook)
            except Exception:  # as above: the result stays plain JSON
                self._value_decoder = _plain_decoder
        self._decoder = msgspec.json.Decoder(shape, dec_hook=_decode_hook)
        return self._decoder


class OpenCodec(Codec):
    """Codec for calls whose parameters are not declared: any arguments by name, as plain JSON values."""

    def __init__(self, task: str, fn: Callable[..., Any]) -> None:
        super().__init__(task, fn, {}, fn)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if args:
            raise InvalidArguments(self.task, "its parameters are not declared: pass them by name, or say batch_of=")
        return dict(kwargs)

    def encode(self, given: Mapping[str, Any], bytes_max: int) -> bytes:
        for name, value in given.items():
            if (fault := _plain_fault(value)) is not None:
                raise InvalidArguments(
                    self.task, f"{name!r} was given {fault}, and parameters that are not declared take plain JSON only"
                )
        return encode_unseen(self.task, (), given, bytes_max)

    def decode(self, raw: bytes) -> dict[str, Any]:
        stored = self._decode(_plain_decoder, raw)
        if not isinstance(stored, dict) or STAR in stored:
            raise InvalidArguments(self.task, "they must be named, as its parameters are not declared")
        return stored


class CatchAllCodec(Codec):
    """Codec for a call of a task that the app does not know: its name, and its arguments as plain JSON values."""

    def __init__(self, task: str, handler: Codec) -> None:
        super().__init__(task, handler._fn, handler._parameters)

    def decode(self, raw: bytes) -> dict[str, Any]:
        name, arguments = self.names
        return {name: self.task, arguments: self._decode(_plain_decoder, raw)}


def _item_of(kind: Any) -> Any:
    """The type of one result of a batch handler, by its return annotation: `list[X]` or `list[X] | None`; else Any."""
    for one in (kind, *typing.get_args(kind)):
        inner = typing.get_args(one)
        if typing.get_origin(one) in _LISTS and inner:
            return inner[0]
    return Any


def encode_result(task: str, value: Any, bytes_max: int) -> bytes:
    """A job's result as JSON; raises InvalidResult."""
    try:
        raw = encode_json(value)
    except Refused as refusal:
        raise InvalidResult(task, str(refusal)) from None
    if len(raw) > bytes_max:
        raise InvalidResult(
            task,
            f"it takes {len(raw)} bytes, at most {bytes_max} are kept. Store the bulk elsewhere and return "
            "its name, or raise result_bytes_max=",
        )
    return raw


def encode_unseen(task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], bytes_max: int) -> bytes:
    """Encode arguments for a task whose code this producer lacks: checked as JSON, bound and typed by the worker."""
    if STAR in kwargs:
        raise InvalidArguments(task, f"no parameter can be called {STAR!r}")
    given: dict[str, Any] = {STAR: args, **kwargs} if args else dict(kwargs)
    try:
        raw = encode_json(given, DEPTH_MAX + 2 if args else DEPTH_MAX + 1)
    except Refused as refusal:
        raise InvalidArguments(task, str(refusal)) from None
    if len(raw) > bytes_max:
        raise InvalidArguments(task, f"they take {len(raw)} bytes, at most {bytes_max} are allowed")
    return raw


def _awaits(value: Any) -> bool:
    """Whether a value contains a placeholder for another job's result."""
    try:
        encode_json(value)
    except AwaitsResults:
        return True
    except Refused:
        return False
    return False


def encode_awaiting(task: str, given: Mapping[str, Any], bytes_max: int) -> tuple[bytes, tuple[str, ...]]:
    """Arguments with results of other jobs among them as JSON, and the ids of those jobs."""
    parents: dict[str, None] = {}

    def without(value: Any) -> Any:
        return None if isinstance(value, Placeholder) else _encode_hook(value)

    def stored(value: Any) -> Any:
        if not isinstance(value, Placeholder):
            return _encode_hook(value)
        parents[value.job_id] = None
        return {KEY: value.job_id}

    try:
        if MARK in encode_json(given, DEPTH_MAX + 2, without):
            raise InvalidArguments(task, f"a key {KEY!r} stands for the result of another job: rename yours")
        raw = encode_json(given, DEPTH_MAX + 2, stored)
    except Refused as refusal:
        raise InvalidArguments(task, str(refusal)) from None
    if len(raw) > bytes_max:
        raise InvalidArguments(task, f"they take {len(raw)} bytes, at most {bytes_max} are allowed")
    return raw, tuple(parents)


def decode_plain(raw: bytes) -> Any:
    """JSON as plain values, for displaying what is stored."""
    return _plain_decoder.decode(raw)


def decoder(kind: type[T], *, strict: bool = True) -> Callable[[Any], T]:
    """A decoder of JSON to a type of a store. It is built at the first use: a producer needs few of them."""
    made = functools.cache(lambda: msgspec.json.Decoder(kind, strict=strict).decode)
    return lambda value: made()(value)
