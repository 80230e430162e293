"""Importing the user's app: MODULE:APP to a Holdfast, or a message that explains why not and where.

Called by session and work. Importing runs the user's code; whatever it raises becomes ImportFailed (exit 7), which
names the user's own file and line.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ..app import Holdfast
from ..hooks import tellable_words
from ..names import nearest
from .exits import CommandFailed, Exit


class ImportFailed(CommandFailed):
    """The user's module or app cannot be imported."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(Exit.IMPORT_FAILED, text, hint)


def import_app(path: str, app_dir: str) -> Holdfast:
    """The app that MODULE:APP names; without :APP, the module's only one."""
    module_name, _, attribute = path.partition(":")
    directory = os.path.abspath(app_dir)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    module = import_module(module_name, directory)
    return _find_app(module, attribute) if attribute else _only_app(module)


def import_modules(names: Iterable[str]) -> None:
    """Import modules that define more tasks."""
    for name in names:
        import_module(name)


def import_module(name: str, directory: str = "") -> ModuleType:
    """Import a module; turn any error into one sentence with the user's file and line."""
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ImportFailed(f"{name!r} is not a module name.", "Write MODULE:APP, such as shop.jobs:app.")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ImportFailed(
                f"there is no module {name!r} in {directory or os.getcwd()} or on the Python path.",
                f"Run it from the directory of the module, or give --app-dir.{_colon_for_dot(name)}",
            ) from None
        raise _failed(name, error) from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # also SystemExit, and whatever else a module may raise while loading
        raise _failed(name, error) from error


def _colon_for_dot(name: str) -> str:
    """A hint for users who typed shop.app and meant shop:app."""
    module, dot, last = name.rpartition(".")
    return f" If {last} is the app, write {module}:{last}." if dot else ""


def _failed(name: str, error: BaseException) -> ImportFailed:
    text = tellable_words(error)
    kind = type(error).__name__
    return ImportFailed(
        f"importing {name!r} failed{_where(error)}: {kind}: {text}" if text else f"importing {name!r} failed: {kind}",
        "Fix that and run it again; HOLDFAST_DEBUG=1 shows the whole traceback.",
    )


def _where(error: BaseException) -> str:
    """The user's line: the last frame that is neither ours nor the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    ours = os.path.dirname(os.path.dirname(__file__))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", ours)) and "importlib" not in frame.filename
    ]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _find_app(module: ModuleType, attribute: str) -> Holdfast:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
            near = nearest(part, apps) or (f" It has {', '.join(apps)}." if apps else "")
            hint = "" if apps else 'Make one there: app = Holdfast("sqlite:///jobs.db").'
            raise ImportFailed(f"module {module.__name__!r} has no {attribute!r}.{near}", hint)
        found = getattr(found, part)
    if not isinstance(found, Holdfast):
        raise ImportFailed(f"{module.__name__}:{attribute} is a {type(found).__name__}, not a holdfast.Holdfast.")
    return found


def _only_app(module: ModuleType) -> Holdfast:
    apps = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Holdfast)}
    if not apps:
        raise ImportFailed(f"module {module.__name__!r} has no holdfast.Holdfast.", "Say where it is: MODULE:APP.")
    if len(apps) > 1:
        named = ", ".join(f"{module.__name__}:{name}" for name, _ in apps.values())
        raise ImportFailed(f"module {module.__name__!r} has {len(apps)} apps ({named}).", "Say which: MODULE:APP.")
    return next(iter(apps.values()))[1]
