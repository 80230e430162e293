"""Holdfast as a Flask extension: `jobs = Holdfast()`, then `jobs.init_app(flask_app)` in the factory.

It is a `holdfast.Holdfast` whose URL comes from the Flask config, and whose handlers run in the application context of
that Flask app: `current_app`, `g` and extensions work in them. Never touches requests: a job has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from . import app as holdfast_app
from .context import Context, Resources
from .errors import ConfigurationError

try:
    import flask
except ImportError:  # pragma: no cover - the tests have it
    raise ConfigurationError("holdfast.flask needs Flask, which is not installed: pip install flask.") from None

EXTENSION = "holdfast"  # its name in `flask_app.extensions`


class Holdfast(holdfast_app.Holdfast):
    """An app that belongs to a Flask app: `Holdfast(flask_app)`, or `Holdfast()` and `init_app(flask_app)` later.

    The config may have `HOLDFAST_URL` and `HOLDFAST_IMPORTS`; other settings are those of `holdfast.Holdfast`.
    """

    def __init__(self, flask_app: flask.Flask | None = None, /, url: str | None = None, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._flask_app: flask.Flask | None = None
        self.on_startup(self._check_bound)
        self.around(self._in_context, self._ain_context)
        if flask_app is not None:
            self.init_app(flask_app)

    def init_app(self, flask_app: flask.Flask) -> None:
        """Configure this app from that Flask app, in whose context its handlers run from now on."""
        config = flask_app.config
        url, imports = config.get("HOLDFAST_URL"), config.get("HOLDFAST_IMPORTS")
        if (url is not None and url != self.url) or imports is not None:
            self.configure(url, imports=imports)
        self._flask_app = flask_app
        flask_app.extensions[EXTENSION] = self

    @property
    def flask_app(self) -> flask.Flask:
        """The Flask app it belongs to."""
        if self._flask_app is None:
            raise ConfigurationError(
                "these jobs belong to no Flask app yet. Call init_app(flask_app): the module that `holdfast work` "
                "imports must make the Flask app, too."
            )
        return self._flask_app

    def _check_bound(self, resources: Resources) -> None:
        resources["flask"] = self.flask_app

    def _in_context(self, ctx: Context, call_next: Callable[[], Any]) -> Any:
        with self.flask_app.app_context():
            return call_next()

    async def _ain_context(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        with self.flask_app.app_context():
            return await call_next()
