"""`holdfast dead note`, `dead stats` and `keys free`."""

from __future__ import annotations

from tests.cli.shells import Shell


def test_a_note_is_shown_with_its_letter(shell: Shell) -> None:
    shell("enqueue", "fail", "word=x", "--id", "j1")
    shell("bury", "j1", "--reason", "no")
    assert "noted" in shell("dead", "note", "j1", "rang ann").stdout
    assert "rang ann" in shell("dead", "show", "j1").stdout
    assert shell.json("dead", "show", "j1")["letter"]["notes"][0]["text"] == "rang ann"
    assert "rang ann" in shell("history", "j1").stdout
    shell("dead", "note", "nobody", "x", code=3)


def test_dead_letters_are_counted(shell: Shell) -> None:
    assert shell("dead", "stats").stdout == "no dead letters.\n"
    shell("enqueue", "fail", "word=x", "--id", "j1")
    shell("bury", "j1")
    assert "1 dead letter, 1 death." in shell("dead", "stats").stdout
    assert shell.json("dead", "stats")["stats"]["by_reason"] == {"bury": 1}


def test_a_key_is_freed(shell: Shell) -> None:
    shell("enqueue", "t", "--key", "k", "--id", "j1")
    assert "j1" in shell("keys", "free", "k", "--yes").stdout
    assert shell.json("enqueue", "t", "--key", "k", "--id", "j2")["job"]["created"] is True
    shell("keys", "free", "none", "--yes", code=3)
    advice = shell.error("keys", "free", "k", code=2)
    assert "Add --yes" in str(advice) and "--dry-run" not in str(advice)  # it has no such option


def test_a_cancel_has_a_reason(shell: Shell) -> None:
    shell("enqueue", "t", "--id", "j1")
    shell("cancel", "j1", "--reason", "wrong address")
    assert "wrong address" in shell("explain", "j1").stdout
    assert "wrong address" in shell("job", "j1").stdout
