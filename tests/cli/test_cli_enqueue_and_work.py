"""`holdfast enqueue` and `holdfast work`, with and without the code."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.shells import Shell

from holdfast.cli.work import read_queues


def test_enqueue_prints_the_id_and_says_the_store(shell: Shell) -> None:
    result = shell("enqueue", "send", "to=ann", "--id", "j1")
    assert result.stdout == "j1\n"
    assert result.stderr == f"store: {shell.url}\n"


def test_repeating_an_id_makes_one_job(shell: Shell) -> None:
    assert shell.json("enqueue", "send", "to=ann", "--id", "j1")["job"]["created"] is True
    assert shell.json("enqueue", "send", "to=ann", "--id", "j1")["job"]["created"] is False
    assert "kept" in shell("enqueue", "send", "to=ann", "--id", "j1").stderr
    assert len(shell.json("jobs")["jobs"]) == 1


def test_every_option_is_stored(shell: Shell) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    shell(
        "enqueue", "t", "--args", '{"a": [1, 2]}', "b=true", "c=word", "--queue", "pdf", "--priority", "7",
        "--group", "g", "--key", "k", "--id", "j1", "--at", at.isoformat(),
    )  # fmt: skip
    job = shell.json("job", "j1")["job"]
    assert job["args"] == {"a": [1, 2], "b": True, "c": "word"}
    assert (job["queue"], job["priority"], job["group"], job["key"]) == ("pdf", 7, "g", "k")
    assert job["state"] == "scheduled"
    assert datetime.fromisoformat(job["due_at"]) == at
    shell("enqueue", "t", "--delay", "2h", "--id", "j2")
    assert shell.json("job", "j2")["job"]["state"] == "scheduled"


def test_an_order_is_stored_and_shown(shell: Shell) -> None:
    shell("enqueue", "t", "--group", "g", "--order", "-7", "--id", "j1")
    assert shell.json("job", "j1")["job"]["order"] == -7
    assert "-7" in shell("job", "j1").output
    assert "group=" in shell.error("enqueue", "t", "--order", "3", code=2)["message"]


def test_headers_are_stored_as_text(shell: Shell) -> None:
    shell("enqueue", "t", "--header", "tenant=7", "--header", "trace=a=b", "--id", "j1")
    assert shell.json("job", "j1")["job"]["headers"] == {"tenant": "7", "trace": "a=b"}
    assert "NAME=TEXT" in shell.error("enqueue", "t", "--header", "tenant", code=2)["message"]


@pytest.mark.parametrize(
    ("words", "created", "replaced", "args"),
    [
        ([], [True, False], [False, False], {"n": 1}),
        (["--on-conflict", "replace"], [True, False], [False, True], {"n": 2}),
        (["--on-conflict", "debounce", "--calm", "1m", "--calm-max", "1h"], [True, False], [False, True], {"n": 2}),
        (["--on-conflict", "throttle", "--window", "1h"], [True, False], [False, False], {"n": 1}),
        (["--on-conflict", "keep_last"], [True, False], [False, True], {"n": 2}),
        (["--key-until", "started", "--key-scope", "global"], [True, False], [False, False], {"n": 1}),
    ],
)
def test_what_happens_where_a_key_is_held(
    shell: Shell, words: list[str], created: list[bool], replaced: list[bool], args: object
) -> None:
    calls = [shell.json("enqueue", "t", f"n={n}", "--key", "k", *words)["job"] for n in (1, 2)]
    assert [call["created"] for call in calls] == created
    assert [call["replaced"] for call in calls] == replaced
    [job] = shell.json("jobs")["jobs"]
    assert shell.json("job", job["id"])["job"]["args"] == args


def test_a_held_key_may_be_an_error(shell: Shell) -> None:
    shell("enqueue", "t", "--key", "k")
    assert "holds the key" in shell.error("enqueue", "t", "--key", "k", "--on-conflict", "raise", code=1)["message"]
    assert "window" in shell.error("enqueue", "t", "--key", "k", "--on-conflict", "throttle", code=2)["message"]


def test_a_job_may_expire_without_a_trace(shell: Shell) -> None:
    shell("enqueue", "t", "--expires", "1m", "--on-expire", "drop", "--id", "j1")
    assert shell.json("job", "j1")["job"]["expires_at"] is not None
    assert re.search(r"expires +in \d+s", shell("job", "j1").stdout)


def test_with_the_app_the_task_decides_queue_and_group_and_types(shell: Shell) -> None:
    shell("enqueue", "send", "to=007", "times=3", "--id", "j1", *shell.app)
    job = shell.json("job", "j1")["job"]
    assert job["args"] == {"to": "007", "times": 3}
    assert (job["queue"], job["group"]) == ("mail", "007")


@pytest.mark.parametrize("arguments", [["to=ann", "times=many"], ["too=ann"], []])
def test_with_the_app_wrong_arguments_are_refused_here(shell: Shell, arguments: list[str]) -> None:
    assert "rejected" in shell.error("enqueue", "send", *arguments, *shell.app, code=2)["message"]
    assert shell.json("jobs")["jobs"] == []


def test_with_the_app_an_unknown_task_is_met_with_a_proposal(shell: Shell) -> None:
    assert shell.error("enqueue", "sned", *shell.app, code=3)["hint"] == "Did you mean send?"


@pytest.mark.parametrize(
    "words",
    [["novalue"], ["--args", "[1]"], ["--args", "{"], ["--delay", "soon"], ["--at", "tomorrow"], ["--priority", "999"]],
    ids=" ".join,
)
def test_bad_spellings_are_usage_errors(shell: Shell, words: list[str]) -> None:
    shell.error("enqueue", "t", *words, code=2)


def test_wait_shows_the_result_of_a_finished_job(shell: Shell) -> None:
    shell("enqueue", "send", "to=ann", "--id", "j1", *shell.app)
    shell.drain()
    assert shell("enqueue", "send", "to=ann", "--id", "j1", "--wait", *shell.app).stdout == '"1 to ann"\n'
    assert shell.json("enqueue", "send", "to=ann", "--id", "j1", "--wait")["job"]["value"] == "1 to ann"


def test_wait_fails_with_the_job_and_with_time(shell: Shell) -> None:
    shell("enqueue", "fail", "word=fly", "--id", "d1", *shell.app)
    assert (
        "still ready" in shell.error("enqueue", "fail", "--id", "d1", "--wait", "--timeout", "50ms", code=1)["message"]
    )
    shell.drain()
    assert "is dead (failed)" in shell.error("enqueue", "fail", "--id", "d1", "--wait", code=1)["message"]


def test_work_drains_and_sums_up(shell: Shell) -> None:
    shell("enqueue", "send", "to=ann", *shell.app)
    shell("enqueue", "fail", "word=fly", *shell.app)
    words = ["work", f"{shell.module}:app", "--app-dir", str(shell.directory), "--drain", "--slots", "2"]
    result = shell(*words)
    assert "working for" in result.stderr
    assert "stopped: 1 succeeded, 1 failed attempt, 0 jobs left." in result.stderr
    document = shell.json(*words)
    assert {name: document[name] for name in ("succeeded", "failed", "left")} == {
        "succeeded": 0,
        "failed": 0,
        "left": 0,
    }


def test_work_serves_another_store_and_named_queues(shell: Shell, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    shell("enqueue", "send", "to=ann", "--id", "j1", *shell.app, "--url", other)
    base = ["work", f"{shell.module}:app", "--app-dir", str(shell.directory), "--drain", "--url", other]
    result = shell(*base, "-q", "mial")
    assert "Did you mean mail?" in result.stderr
    assert shell.json("job", "j1", "--url", other)["job"]["state"] == "ready"
    shell(*base, "-q", "mail:2,default", "--lease", "10s", "--grace", "1s")
    assert shell.json("job", "j1", "--url", other)["job"]["state"] == "succeeded"


def test_work_imports_further_modules(shell: Shell) -> None:
    module = f"more_{shell.module}"
    (shell.directory / f"{module}.py").write_text(
        f"from {shell.module} import app\n@app.task(name='more')\ndef more() -> int:\n    return 5\n"
    )
    shell("enqueue", "more", "--id", "j1")
    shell("work", f"{shell.module}:app", "--app-dir", str(shell.directory), "--drain", "--import", module)
    assert shell.json("job", "j1")["job"]["value"] == 5


def test_work_refuses_a_store_that_lives_in_one_process(shell: Shell) -> None:
    told = shell.error("work", f"{shell.module}:app", "--app-dir", str(shell.directory), "-u", "memory://", code=2)
    assert "app.work()" in told["message"]


def test_a_lease_that_cannot_hold_is_refused(shell: Shell) -> None:
    shell.error("work", f"{shell.module}:app", "--app-dir", str(shell.directory), "--lease", "1ms", code=2)


def test_queues_are_read_with_their_slots() -> None:
    assert read_queues(()) is None
    assert read_queues(("mail:50,pdf:2", "default")) == {"mail": 50, "pdf": 2, "default": None}


@pytest.mark.parametrize("text", ["", "mail:", "mail:0", "mail:x", ":3", "mail,,pdf"])
def test_queues_that_cannot_be_read(shell: Shell, text: str) -> None:
    shell.error("work", f"{shell.module}:app", "-q", text, code=2)


def test_publish_makes_a_job_for_each_subscriber(shell: Shell) -> None:
    app = ("--app", f"{shell.module}:app", "--app-dir", str(shell.directory))
    assert shell("publish", "trouble", "word=7", "--id", "e1", *app).stdout == "1 job made.\n"
    assert shell.json("publish", "trouble", "word=7", "--id", "e1", *app)["kept"] == 1
    assert shell.json("job", "e1:fail")["job"]["args"] == {"word": "7"}
    assert shell("publish", "trouble", code=2).stderr.count("--app") >= 1
