"""A row that cannot be read: every command goes on past it and says so; audit and doctor name it; a move refuses."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from tests.servers import valkey
from tests.servers.valkey import raw

from holdfast import Holdfast
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.cli.main import main
from holdfast.errors import MoveRefused
from holdfast.inspection import audit
from holdfast.inspection.audit import judge, named
from holdfast.inspection.store_health import FLAWS_MAX, look_at_store
from holdfast.mover import Mover, Side
from holdfast.records import Flaw

FLAW = Flaw(place="jobs", id="j", field="errors", text="it cannot be read")


class Flawed(MemoryBackend):
    """A store that lists flaws."""

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        return [FLAW][:limit]


def test_an_audit_names_the_row_and_the_field() -> None:
    async def scenario() -> None:
        backend = Flawed()
        await backend.open()
        [violation] = (await audit(backend)).violations
        assert (violation.rule, violation.job_id) == ("readable", "j")
        assert violation.text == "jobs j, field errors: it cannot be read" == named(FLAW)

    asyncio.run(scenario())


def test_a_flaw_without_a_row_is_named_by_its_place() -> None:
    assert named(Flaw(place="ready", text="it is gone")) == "ready: it is gone"
    assert judge.__defaults__ == ((),)


def test_a_move_refuses_before_it_seals_anything() -> None:
    async def scenario() -> None:
        source, target = Flawed(), MemoryBackend()
        for backend in (source, target):
            await backend.open()
        mover = Mover(Side(source, "a"), Side(target, "b"), wait=0.0, say=lambda step: None)
        with pytest.raises(MoveRefused, match=r"1 rows .* \(jobs j, field errors: .*a move would lose them"):
            await mover.run()
        assert await source.sealed() is None and await target.sealed() is None

    asyncio.run(scenario())


def test_the_doctor_does_not_look_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Endless(MemoryBackend):
        async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
            asked.append(limit)
            await asyncio.Event().wait()
            return []

    async def scenario() -> None:
        from holdfast.backends import parse_url
        from holdfast.backends.durability import StoreFacts
        from holdfast.inspection import store_health

        async def facts(address: object) -> StoreFacts:
            return StoreFacts(schema=1)

        monkeypatch.setattr(store_health, "FLAWS_SECONDS", 0.01)
        monkeypatch.setattr(store_health, "ask_store", facts)
        backend = Endless()
        await backend.open()
        look = await look_at_store(backend, parse_url("memory://"))
        assert look.flaws is None and asked == [FLAWS_MAX]
        [rows] = [one for one in store_health.judge_store(look) if one.about == "rows"]
        assert rows.verdict == "note" and "audit" in rows.next

    asyncio.run(scenario())


# ---------------------------------------------------------------------- on a real store


def run(*words: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(words))
    return code, said.getvalue()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store with good jobs around the bad ones: see `POISONS`."""
    server, prefix = valkey.shared_server(), f"flaws-{abs(hash(request.node.nodeid))}"
    with Holdfast(server.url(prefix)) as app:
        for name in ("good-1", "victim", "good-2"):
            app.named("t").using(id=name).enqueue(1)
        app.bury(app.named("t").using(id="buried").enqueue(1))
    with server.client() as client:
        request.param(client, lambda key: f"{{{prefix}}}:{key}")
    yield server.url(prefix)
    valkey.empty(server, prefix)


def _with_a_text_for_priority(packed: bytes) -> bytes:
    """As scripts read it: three bytes before the fields."""
    fields = [*msgspec.msgpack.decode(packed)]
    fields[5] = "high"
    return b"\xdc" + len(fields).to_bytes(2, "big") + b"".join(map(msgspec.msgpack.encode, fields))


Poison = Callable[[redis.Redis, Callable[[str], str]], Any]
POISONS: dict[str, Poison] = {
    "record": lambda r, k: r.hset(k("jobs"), "victim", b"\xff"),
    "state": lambda r, k: r.hset(k("jobs"), "victim", raw(r.hget(k("jobs"), "victim")).replace(b"\xa1r", b"\xa1Z", 1)),
    "errors": lambda r, k: r.hset(k("errors"), "victim", b"\xff"),
    "body": lambda r, k: r.hset(k("bodies"), "victim", b"\xff"),
    "letters": lambda r, k: [r.hset(k("letters"), name, b"\xff") for name in r.hkeys(k("letters"))],
    "kind": lambda r, k: r.hset(k("jobs"), "victim", _with_a_text_for_priority(raw(r.hget(k("jobs"), "victim")))),
}
NAMED = {
    "record": "jobs victim, field record: its record cannot be read",
    "state": "jobs victim, field state: its record cannot be read",
    "errors": "errors victim, field errors: it cannot be read",
    "body": "bodies victim, field args: its arguments cannot be read",
    "letters": "letters buried: it cannot be read and is left out",
    "kind": "jobs victim, field priority: its record cannot be read",
}
poisoned = pytest.mark.parametrize("url", POISONS.values(), ids=list(POISONS), indirect=True)


@poisoned
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_every_look_goes_on_past_the_bad_row(url: str, form: tuple[str, ...]) -> None:
    for words in (["jobs"], ["job", "good-1"], ["job", "victim"], ["stats"], ["queues"], ["explain", "victim"],
                  ["explain", "good-2"], ["dead", "ls"], ["tasks"], ["workers"]):  # fmt: skip
        code, said = run(*words, *form, "--url", url)
        assert code == 0 and "unexpected" not in said and "Traceback" not in said, (words, said)
        if words == ["jobs"]:
            assert "good-1" in said and "good-2" in said


@poisoned
def test_audit_and_doctor_name_it_and_a_move_refuses(url: str, tmp_path: Path) -> None:
    code, said = run("audit", "--json", "--url", url)
    found = [one for one in json.loads(said)["violations"] if one["rule"] == "readable"]
    assert code == 1 and any(one["job_id"] in ("victim", "buried") for one in found), said
    code, said = run("doctor", "--json", "--url", url)
    [rows] = [one for one in json.loads(said)["findings"] if one["about"] == "rows"]
    assert code == 1 and rows["verdict"] == "wrong", said
    for more in ((), ("--dry-run",)):
        code, said = run("move", url, f"sqlite:///{tmp_path}/t.db", "--yes", *more)
        assert code == 1 and "cannot be read" in said and "audit" in said, said
    code, said = run("enqueue", "t", "--url", url)  # nothing was sealed
    assert code == 0, said


@pytest.mark.parametrize(("url", "text"), [(POISONS[name], NAMED[name]) for name in POISONS], indirect=["url"])
def test_audit_and_doctor_name_the_id_and_the_field_and_exit_with_1(url: str, text: str) -> None:
    code, said = run("audit", "--url", url)
    assert code == 1 and text in said, said
    code, said = run("doctor", "--url", url)
    assert code == 1 and text in " ".join(said.split()), said
    code, said = run("jobs", "--url", url)
    assert code == 0 and "good-1" in said and "good-2" in said


@pytest.mark.parametrize("url", [POISONS["errors"]], indirect=True)
def test_a_job_says_which_fields_cannot_be_read(url: str) -> None:
    _, said = run("job", "victim", "--json", "--url", url)
    assert json.loads(said)["job"]["unreadable"] == ["errors"]
    _, said = run("jobs", "--url", url)
    assert "cannot be read: errors" in said and "`holdfast audit` names them" in said
    _, said = run("explain", "victim", "--url", url)
    assert "(errors)" in said
