"""What these integrations need is imported only by them, and its absence is said with what to install."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

from holdfast import ConfigurationError
from holdfast.cli.main import cli

NEEDS = {"metrics": "prometheus_client", "otel": "opentelemetry", "sentry": "sentry_sdk"}


@pytest.mark.parametrize(("extra", "package"), NEEDS.items())
def test_a_missing_package_is_named_with_the_extra(extra: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package or name == f"holdfast.{extra}"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'holdfast\[{extra}\]'"):
        importlib.import_module(f"holdfast.{extra}")


def test_commands_that_need_prometheus_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for words in (["metrics"], ["work", "shop:app", "--metrics-port", "0"]):
        shown = CliRunner().invoke(cli, words)
        assert shown.exit_code == 2 and "holdfast[metrics]" in shown.output, shown.output


def test_holdfast_itself_imports_none_of_them() -> None:
    code = f"import sys, holdfast.app, holdfast.worker.embedded; print(set({[*NEEDS.values()]}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
