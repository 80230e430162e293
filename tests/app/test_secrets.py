"""No password of a URL is ever shown: every special character, in every place, in every text that may show a URL."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.backends import parse_url
from holdfast.cli.main import main
from holdfast.errors import ConfigurationError, HoldfastError

MARK = "S3CRET"
SPECIAL = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ é\x7f"
ALONE = "redis://{}@127.0.0.1:1/0"
FORMS = (  # port 1: nobody answers there
    "postgresql://u:{}@127.0.0.1:1/db",
    "postgres://:{}@127.0.0.1:1,127.0.0.1:2/db?schema=s",
    "postgresql://127.0.0.1:1/db?user=u&password={}",
    "postgresql://127.0.0.1:1/db?sslpassword={}&sslmode=require",
    "postgresql://127.0.0.1:1/db?options=-c%20x.y%3D{}",
    "redis://u:{}@127.0.0.1:1/0",
    ALONE,
    "rediss://:{}@127.0.0.1:1/0?prefix=p",
    "redis://127.0.0.1:1/0?password={}",
    "rediss://127.0.0.1:1/0?ssl_password={}&db=1",
    "redis+unix://u:{}@/nowhere.sock",
    "redis+cluster://u:{}@127.0.0.1:1,127.0.0.1:2/?prefix=p",
    "valkeys+cluster://127.0.0.1:1?password={}",
)


def passwords() -> Iterator[str]:
    """The mark with each special character before, behind and around it, and with random runs of them."""
    chance = random.Random(42)
    for one in SPECIAL:
        yield from (f"{one}{MARK}", f"{MARK}{one}", f"a{one}{MARK}{one}b", f"{MARK}{one}{one}{MARK}")
    for _ in range(60):
        before, behind = (("".join(chance.choices(SPECIAL + "a1", k=chance.randrange(6)))) for _ in range(2))
        yield f"{before}{MARK}{behind}"


def texts_of(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield from (str(error), repr(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("form", FORMS)
def test_a_url_taken_apart_shows_no_password(form: str) -> None:
    for password in passwords():
        if form == ALONE and ":" in password:
            continue  # a user, then, and a password
        try:
            app = Holdfast(form.format(password))
        except ConfigurationError as error:
            shown = [*texts_of(error)]
        else:
            address = parse_url(app.url)
            shown = [repr(app), str(app), app.safe_url, repr(address), address.store_name, repr(app.task_by_name("t"))]
        assert not any(MARK in text for text in shown), (password, shown)


@pytest.mark.parametrize("form", FORMS)
def test_a_store_that_cannot_be_reached_shows_no_password(form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for password in itertools.islice(passwords(), 0, None, 5):
        if form == ALONE and ":" in password:
            continue
        try:
            backend = Holdfast(form.format(password))._open_backend()
            asyncio.run(backend.open())
        except HoldfastError as error:
            shown = [*texts_of(error)]
        assert not any(MARK in text for text in [*shown, caplog.text]), (password, shown)


@pytest.mark.parametrize("command", [["enqueue", "x"], ["doctor", "--json"], ["jobs"], ["migrate"]])
def test_no_command_shows_a_password(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form, mark in itertools.product((FORMS[0], FORMS[2], FORMS[5], FORMS[11]), "#?/@%&"):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([*command, "--url", form.format(f"a{mark}{MARK}")])
        assert MARK not in said.getvalue() and "Traceback" not in said.getvalue()
        assert code in (1, 2, 3, 4) and "unexpected" not in said.getvalue(), said.getvalue()


def test_an_error_of_the_users_code_that_holds_a_url_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(f"raise ValueError('cannot reach amqp://u:a b{MARK}@h')\n")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert main(["jobs", "--app", "leaky:app", "--app-dir", str(tmp_path)]) == 7
    assert MARK not in said.getvalue() and "leaky.py:1: ValueError" in said.getvalue()
