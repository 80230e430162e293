"""Names: one place decides which are valid, and what is wrong with the others."""

from __future__ import annotations

import types

import pytest

from holdfast.errors import ConfigurationError
from holdfast.names import NAME_LENGTH_MAX, check_name, check_queue, default_task_name


@pytest.mark.parametrize("name", ["a", "mail.send", "grüße", "日本", "a b", "🎈", "x" * NAME_LENGTH_MAX, "user:7"])
def test_good_names_come_back_unchanged(name: str) -> None:
    assert check_name(name, "key") == name


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "empty"),
        ("x" * (NAME_LENGTH_MAX + 1), "201 characters"),
        ("a\nb", "U+000A"),
        ("a\0", "U+0000"),
        ("\x7f", "U+007F"),
        ("\x85", "U+0085"),
        ("a\u2028b", "U+2028"),
        ("\ud800", "lone surrogate"),
        (7, "not int"),
        (b"x", "not bytes"),
        (None, "not NoneType"),
    ],
)
def test_bad_names_are_refused_with_their_fault(name: object, fault: str) -> None:
    with pytest.raises(ConfigurationError, match="the key") as caught:
        check_name(name, "key")
    assert fault in str(caught.value)


@pytest.mark.parametrize("name", ["{a}", "a}", "a,b"])
def test_queue_names_have_no_braces_or_commas(name: str) -> None:
    with pytest.raises(ConfigurationError, match="queue name"):
        check_queue(name)


def test_a_subclass_of_str_becomes_a_plain_str() -> None:
    class Loud(str):
        __slots__ = ()

    assert type(check_name(Loud("grün"), "group")) is str


def module_level() -> None: ...


def test_a_task_is_named_by_module_and_qualname() -> None:
    assert default_task_name(module_level) == f"{__name__}.module_level"  # type: ignore[arg-type]


def test_a_local_function_has_no_stable_name() -> None:
    def local() -> None: ...

    with pytest.raises(ConfigurationError, match="name="):
        default_task_name(local)  # type: ignore[arg-type]


def test_main_is_replaced_by_the_stem_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = "/somewhere/mailer.py"
    main.__spec__ = None
    monkeypatch.setitem(__import__("sys").modules, "__main__", main)
    function = types.FunctionType(module_level.__code__, {"__name__": "__main__"}, "send")
    function.__qualname__ = "send"
    assert default_task_name(function) == "mailer.send"
