"""The dashboard: monitor and control one store in a browser. `holdfast.dashboard.create(app_or_url)` is an ASGI app.

Needs the extra `dashboard` (Starlette and Jinja2). It reads through the app's own operator methods, so it works the
same on every store; it never imports the user's tasks unless it is given their app.
"""

from ..errors import ConfigurationError

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError as error:  # pragma: no cover - the tests have both
    raise ConfigurationError(
        f"the dashboard needs {error.name}, which is not installed: pip install 'holdfast[dashboard]'."
    ) from None

from .access import Access
from .app import create

__all__ = ["Access", "create"]
