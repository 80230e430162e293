"""What is published works without the source tree: the wheel has every file that is read at run time, and no tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
RECORD = "holdfast/backends/redis/scripts.json"  # made by hatch_build.py; in a checkout, too, if it was installed
pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [wheel] = built.glob("*.whl")
    return wheel


def source_files() -> set[str]:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE.parent).as_posix() for path in files} - {RECORD}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {*source_files(), RECORD}
    for kind in (".sql", ".lua", "py.typed"):
        assert any(name.endswith(kind) for name in names), kind


def test_the_sdist_has_what_its_own_tests_need(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names >= {"src/" + name for name in source_files()}
    assert names >= {
        "check",
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "SECURITY.md",
        "tests/conftest.py",
    }
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", ".git/", "dist/"))]


def test_an_empty_environment_with_the_wheel_has_a_command_that_works(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies come from the environment of the tests: what matters is that nothing comes from the tree."""
    home = tmp_path / "empty"
    venv.create(home, symlinks=True, with_pip=False)
    python, command = home / "bin" / "python", home / "bin" / "holdfast"
    outside = sys._base_executable  # type: ignore[attr-defined]  # of which typeshed knows nothing; ./check has pip there
    run(outside, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=tmp_path)
    [site] = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    version = wheel.name.split("-")[1]
    assert version in run(command, "--version", cwd=tmp_path)
    where = run(python, "-c", "import holdfast; print(holdfast.__file__, holdfast.__version__)", cwd=tmp_path)
    assert where.split() == [str(site / "holdfast" / "__init__.py"), version]
    recorded = "from holdfast.backends.redis.scripts import SCRIPTS; print(SCRIPTS.recorded)"
    assert run(python, "-c", recorded, cwd=tmp_path).strip() == "True"
    (tmp_path / "shop.py").write_text(
        "from holdfast import Holdfast\n"
        "app = Holdfast('sqlite:///jobs.db')\n"
        "@app.task(name='add')\n"
        "def add(a: int, b: int) -> int:\n"
        "    return a + b\n",
        encoding="utf-8",
    )
    run(command, "enqueue", "--app", "shop:app", "add", "a=2", "b=3", cwd=tmp_path)
    run(command, "work", "shop:app", "--drain", cwd=tmp_path)
    assert "succeeded" in run(command, "jobs", "--app", "shop:app", cwd=tmp_path)


def test_the_versions_that_are_promised_are_those_that_are_checked() -> None:
    """The oldest is the one that types are checked for; the newest is found by ./check from the same list."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [one.rpartition(" ")[2] for one in settings["project"]["classifiers"] if ":: 3." in one]
    assert named == sorted(named, key=lambda one: int(one.partition(".")[2]))
    assert settings["project"]["requires-python"] == f">={named[0]}"
    assert settings["tool"]["mypy"]["python_version"] == named[0]
