"""Which peers a run takes, and what happens to one that is not available."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bench.environments import LeftOut
from bench.peers import BEST, BEST_WITH_GROUPS, PEERS, chosen

from bench import environments

SCRIPTS = Path(environments.__file__).parent / "contenders"


def test_best_all_none_and_names() -> None:
    assert chosen("best", "postgres") == ["pgqueuer", "pg-boss"]
    assert chosen("best", "postgres", groups=True) == ["pg-boss"]
    assert chosen("none", "redis") == []
    assert chosen("huey,procrastinate", "redis") == ["huey"]
    assert "procrastinate" in chosen("all", "postgres")
    assert chosen("best", "cluster") == []


def test_an_unknown_name_is_refused_and_the_known_are_told() -> None:
    with pytest.raises(SystemExit, match=r"no peer is called hey; there are huey, "):
        chosen("hey", "redis")


def test_every_best_peer_runs_on_its_store_and_every_peer_is_pinned_and_has_its_script() -> None:
    for best in (BEST, BEST_WITH_GROUPS):
        assert [
            (store, name) for store, names in best.items() for name in names if store not in PEERS[name].stores
        ] == []
    for name, peer in PEERS.items():
        assert (SCRIPTS / peer.script).exists(), name
        assert "==" in peer.packages[0] or "@" in peer.packages[0], name


def test_without_node_its_peers_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "HERE", tmp_path / "bench")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LeftOut, match="no node"):
        environments.ready("bull")


def test_an_environment_is_made_once_and_again_when_its_pins_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "HERE", tmp_path / "bench")
    made: list[tuple[str, ...]] = []
    interpreter = tmp_path / "python"
    interpreter.touch()

    def python(home: Path, packages: tuple[str, ...]) -> list[str]:
        made.append(packages)
        return [str(interpreter)]

    monkeypatch.setattr(environments, "_python", python)
    assert environments.ready("huey") == [str(interpreter)]
    assert environments.ready("huey") == [str(interpreter)]
    assert made == [PEERS["huey"].packages]
    monkeypatch.setitem(PEERS, "huey", PEERS["huey"]._replace(packages=("huey==9",)))
    assert environments.ready("huey") == [str(interpreter)]
    assert made[1:] == [("huey==9",)]
