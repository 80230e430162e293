"""Thumbnails on Flask and SQLite: uploads, a job with progress, cancel. `flask --app thumbnails run` serves it."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, abort, current_app, jsonify, request, send_file

from holdfast import JobNotFound

from .jobs import jobs, shrink

web = Blueprint("thumbnails", __name__)
NAME = re.compile(r"[0-9a-f]{32}")


def create_app(config: dict[str, Any] | None = None) -> Flask:
    """The factory: settings come from the environment, then from `config`."""
    app = Flask(__name__)
    media = Path(os.environ.get("MEDIA", "media")).absolute()
    app.config.from_mapping(MEDIA=media, HOLDFAST_URL=f"sqlite:///{media}/jobs.db", MAX_CONTENT_LENGTH=20_000_000)
    app.config.from_mapping(config or {})
    Path(app.config["MEDIA"]).mkdir(parents=True, exist_ok=True)
    jobs.init_app(app)
    app.register_blueprint(web)
    return app


@web.post("/images")
def upload() -> tuple[Response, int]:
    """Take an image (binary PPM) and make its thumbnail later."""
    name = uuid.uuid4().hex
    (Path(current_app.config["MEDIA"]) / f"{name}.ppm").write_bytes(request.get_data())
    job = shrink.options(key=name).enqueue(name, width=int(request.args.get("width", 64)))
    return jsonify(job=job.id, image=name), 202


@web.get("/jobs/<job_id>")
def status(job_id: str) -> Response:
    try:
        job = jobs.job(job_id)
    except JobNotFound:
        abort(404)
    error = None if job.error is None else job.error.text
    return jsonify(state=job.state, progress=job.progress, text=job.progress_text, error=error)


@web.post("/jobs/<job_id>/cancel")
def cancel(job_id: str) -> Response:
    try:
        return jsonify(state=jobs.cancel(job_id).state)
    except JobNotFound:
        abort(404)


@web.get("/thumbnails/<name>")
def thumbnail(name: str) -> Response:
    path = Path(current_app.config["MEDIA"]) / f"{name}.small.ppm"
    if not NAME.fullmatch(name) or not path.exists():
        abort(404)
    return send_file(path, mimetype="image/x-portable-pixmap")
