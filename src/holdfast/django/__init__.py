"""Holdfast in a Django project: `INSTALLED_APPS = [..., "holdfast.django"]`, `from holdfast.django import app`.

Needs the extra `django`. `app` is made from the settings on first use; outside manage.py that sets Django up first, so
`holdfast work holdfast.django:app` works with DJANGO_SETTINGS_MODULE alone. Importing this module sets up nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError

try:
    import django  # noqa: F401
except ImportError:
    raise ConfigurationError(
        "holdfast.django needs Django, which is not installed: pip install 'holdfast[django]'."
    ) from None

if TYPE_CHECKING:
    from .application import DjangoHoldfast
    from .tasks_backend import TasksBackend
    from .transactions import DeferredJob

    app: DjangoHoldfast

__all__ = ["DeferredJob", "TasksBackend", "app"]

_HOMES = {"DeferredJob": ".transactions", "TasksBackend": ".tasks_backend"}


def __getattr__(name: str) -> Any:
    if name == "app":
        value: Any = import_module(".application", __name__).the_app()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name], __name__), name)
    else:
        raise AttributeError(f"module 'holdfast.django' has no attribute {name!r}")
    globals()[name] = value
    return value
