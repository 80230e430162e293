"""What `holdfast work thumbnails.worker:jobs` imports: the jobs, and the Flask app whose context they need."""

from __future__ import annotations

from . import create_app
from .jobs import jobs

app = create_app()

__all__ = ["app", "jobs"]
