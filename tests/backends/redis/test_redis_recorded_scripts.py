"""The record of the scripts: what a call needs of them without assembling them, and when it is not believed."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.backends.redis import assembler, scripts
from holdfast.backends.redis.assembler import load_scripts
from holdfast.backends.redis.scripts import Scripts, read_record, write_record
from holdfast.lifecycle import FAILURE_TEXTS


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "scripts.json"
    write_record(path)
    return path


def test_a_recorded_script_is_the_one_that_would_be_assembled(record: Path) -> None:
    known, made = Scripts(read_record(record)), load_scripts()
    assert known.recorded and known.words == made.words
    for verb, one in made.items():
        script = known[verb]
        assert (script.verb, script.sha, script.writes, script.keys, script.args) == (
            *(verb, one.sha, one.writes, one.keys),
            one.args,
        )
        assert script.text == one.text, verb


def test_a_text_that_many_shards_need_at_once_is_assembled_once(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assembled, at_once = list[str](), threading.Barrier(8)
    assemble = assembler.AssembledScripts._assembled

    def counted(self: assembler.AssembledScripts, verb: str) -> scripts.Script:
        assembled.append(verb)
        return assemble(self, verb)

    monkeypatch.setattr(assembler.AssembledScripts, "_assembled", counted)
    scripts._assembler.cache_clear()
    script = Scripts(read_record(record))["retire"]

    def text(_: int) -> str:
        at_once.wait(60)
        return script.text

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(text, range(8)))) == 1
    assert assembled == ["retire"]


def test_the_record_is_written_in_one_step_and_leaves_nothing_else(record: Path) -> None:
    before = record.read_bytes()
    write_record(record)
    assert record.read_bytes() == before
    assert list(record.parent.iterdir()) == [record]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "not a file", "of other sources"])
def test_a_record_that_is_not_whole_or_of_other_sources_counts_for_nothing(
    record: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = record.read_bytes()
    if damage in ("missing", "not a file"):
        record.unlink()
    if damage == "not a file":
        record.mkdir()
    elif damage == "empty":
        record.write_bytes(b"")
    elif damage == "cut":
        record.write_bytes(content[:-10])
    elif damage == "flipped":
        place = content.index(load_scripts()["exchange"].sha.encode())
        record.write_bytes(
            content[:place] + (b"1" if content[place : place + 1] == b"0" else b"0") + content[place + 1 :]
        )
    elif damage == "of other sources":
        monkeypatch.setattr(scripts, "FAILURE_TEXTS", {**FAILURE_TEXTS, "new": "words"})
    assert read_record(record) is None
    known = Scripts(None)
    assert not known.recorded and known["exchange"].sha == load_scripts()["exchange"].sha


def test_a_changed_lua_file_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(scripts.__file__).parent
    copy = tmp_path / "backends" / "redis"
    (copy / "lua").mkdir(parents=True)
    for path in (*here.glob("*.py"), *here.glob("lua/*.lua"), here.parent / "fragments.py"):
        (tmp_path / "backends" / path.relative_to(here.parent)).write_bytes(path.read_bytes())
    monkeypatch.setattr(scripts, "__file__", str(copy / "scripts.py"))
    before = scripts.fingerprint()
    changed = copy / "lua" / "claim.lua"
    changed.write_bytes(changed.read_bytes().replace(b"64", b"65", 1))
    assert scripts.fingerprint() != before
    changed.rename(changed.with_name("claimed.lua"))
    assert scripts.fingerprint() != before


def test_the_fingerprint_covers_every_module_whose_values_get_into_the_scripts() -> None:
    tree = ast.parse(Path(assembler.__file__).read_text())
    used = {node.module: {one.name for one in node.names} for node in tree.body if isinstance(node, ast.ImportFrom)}
    ours = {module: names for module, names in used.items() if module in ("fragments", "keys", "layouts", "scripts")}
    others = set(used) - set(ours) - {"__future__", "collections.abc", "pathlib", "typing"}
    assert others == set(), "add what it takes from these modules to scripts.fingerprint()"
    assert ours["keys"] == {"KEY_NAMES", "SCHEMA_VERSION"}  # by value; of the other three, the files themselves count


def test_a_process_with_a_record_assembles_nothing_for_a_call(record: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from holdfast.backends.redis import scripts\n"
        f"known = scripts.Scripts(scripts.read_record(Path({str(record)!r})))\n"
        "sys.modules.pop('holdfast.backends.redis.assembler', None); scripts._assembler.cache_clear()\n"
        "assert known['enqueue'].sha and known['enqueue'].keys and known.words\n"
        "assert 'holdfast.backends.redis.assembler' not in sys.modules\n"
        "assert known['enqueue'].text.startswith('#!lua')\n"
        "assert 'holdfast.backends.redis.assembler' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
