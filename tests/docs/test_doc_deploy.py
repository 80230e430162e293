"""The recipes in deploy/ parse, and every command, option and variable in them is one we have."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.doc_pages import ROOT
from tests.docs.test_doc_commands import parse

from holdfast.cli.main import cli
from holdfast.clock import duration_seconds

DEPLOY = ROOT / "deploy"
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
UNITS = ("holdfast-worker.service", "holdfast-dashboard.service")


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment]  # names of settings are case-sensitive
    found.read_string((DEPLOY / name).read_text(encoding="utf-8"))
    return found


def docker_instructions() -> dict[str, str]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return {words[0]: words[1] for words in lines}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))


def pod_of(name: str) -> dict[str, Any]:
    [found] = [one for one in kubernetes() if one["metadata"]["name"] == name and "template" in one["spec"]]
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def commands() -> dict[str, list[str]]:
    """Where a command stands → its words."""
    found = {"Dockerfile": json.loads(docker_instructions()["CMD"])}
    for name in UNITS:
        words = shlex.split(unit(name)["Service"]["ExecStart"])
        found[name] = [Path(words[0]).name, *words[1:]]
    for name, service in compose()["services"].items():
        if "command" in service:
            found[f"compose {name}"] = service["command"]
    for one in kubernetes():
        for container in one["spec"].get("template", {}).get("spec", {}).get("containers", []):
            found[f"kubernetes {container['name']}"] = container["command"]
    return found


def seconds_of(text: str) -> float:
    seconds = duration_seconds(text)
    assert seconds is not None, text
    return seconds


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.mark.parametrize("place", commands())
def test_the_command_line_accepts_the_command(place: str) -> None:
    words = commands()[place]
    assert words[0] == "holdfast", "the exec form: no shell between the runtime and the worker"
    parse([re.sub(r"^\$\{\w+\}", "/etc", word) for word in words], cli)


def test_there_is_a_worker_and_a_dashboard_in_every_kind_of_recipe() -> None:
    kinds = {(place.split()[0], words[1]) for place, words in commands().items()}
    assert kinds >= {(place, what) for place in ("compose", "kubernetes") for what in ("work", "dashboard", "migrate")}
    assert kinds >= {("Dockerfile", "work"), (UNITS[0], "work"), (UNITS[1], "dashboard")}


@pytest.mark.parametrize(
    "path", sorted(path for path in DEPLOY.rglob("*") if path.is_file()), ids=lambda path: path.name
)
def test_every_variable_of_ours_is_one_the_code_reads_and_no_password_is_written(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in set(re.findall(r"\bHOLDFAST_[A-Z_]+", text)):
        assert f'"{name}"' in SOURCE, name
    for password in re.findall(r"\w+://[^\s:/@]+:([^\s@]+)@", text):
        assert password == "PASSWORD"  # noqa: S105


def test_every_runtime_waits_longer_than_the_grace() -> None:
    waits = {
        "compose worker": seconds_of(compose()["services"]["worker"]["stop_grace_period"]),
        "kubernetes worker": pod_of("holdfast-worker")["terminationGracePeriodSeconds"],
        UNITS[0]: float(unit(UNITS[0])["Service"]["TimeoutStopSec"]),
    }
    for place, seconds in waits.items():
        assert seconds > seconds_of(option(commands()[place], "--grace")), place


def test_probes_ask_where_the_worker_listens() -> None:
    [container] = pod_of("holdfast-worker")["containers"]
    host, _, port = option(container["command"], "--health-port").rpartition(":")
    assert (host, [int(port)]) == ("0.0.0.0", [one["containerPort"] for one in container["ports"]])  # noqa: S104
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [probe["path"] for probe in probes] == ["/healthz", "/healthz", "/readyz"]
    assert {probe["port"] for probe in probes} == {one["name"] for one in container["ports"]}
    image = option(json.loads(docker_instructions()["CMD"]), "--health-port")
    assert f"http://127.0.0.1:{image}/readyz" in docker_instructions()["HEALTHCHECK"]
    assert option(commands()["compose worker"], "--health-port") == image, "the image's own check is the worker's"


def test_a_dashboard_that_others_can_reach_asks_for_a_password() -> None:
    for place, words in commands().items():
        if words[1] == "dashboard":
            assert "--password-file" in words, place
            assert "--allow-host" in words, place


def test_the_image_has_a_python_that_is_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = docker_instructions()["FROM"].removeprefix("python:").partition("-")[0]
    assert f"Programming Language :: Python :: {version}" in settings["project"]["classifiers"]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_with(name: str, tmp_path: Path) -> None:
    """Its own checker reads the unit as systemd would; only the program of the shop is not on this machine."""
    checker = shutil.which("systemd-analyze")
    if checker is None:
        pytest.skip("systemd-analyze is not installed")
    program = shlex.split(unit(name)["Service"]["ExecStart"])[0]
    copy = tmp_path / name
    copy.write_text((DEPLOY / name).read_text(encoding="utf-8").replace(program, sys.executable), encoding="utf-8")
    checked = subprocess.run([checker, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    said = [line for line in checked.stderr.splitlines() if name in line]  # others are about the machine's own units
    assert (checked.returncode, said) == (0, []), checked.stderr
