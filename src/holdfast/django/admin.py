"""Admin pages for jobs, dead letters and cron entries: list, filter, view, and the few verbs an operator needs.

They read and change Holdfast's store, not Django's database. Viewing needs the view permission of the page's model,
every verb its change permission; a GET changes nothing, and the admin's own CSRF check guards each POST. Secrets among
the arguments are hidden as in the dashboard. The dashboard shows more; DASHBOARD_URL links to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from ..errors import CronEntryNotFound, HoldfastError, JobNotFound
from ..job import Job as StoredJob
from ..job import plain_args
from ..lifecycle import State
from ..operator import LETTERS_SEEN_MAX
from ..redact import Redact
from .application import DjangoHoldfast, the_app
from .models import CronEntry, DeadLetter, Job

PAGE_ROWS = 50
_redact = Redact(None)

Verb = Callable[[DjangoHoldfast, str, str], object]  # app, id, by


class StorePages(admin.ModelAdmin):
    """A list of entries in the store, and a page for each."""

    verbs: dict[str, tuple[str, Verb]] = {}
    columns: tuple[str, ...] = ()

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        names = self.opts.app_label, self.opts.model_name
        return [
            path("", self.admin_site.admin_view(self.changelist_view), name="{}_{}_changelist".format(*names)),
            path("<path:object_id>/", self.admin_site.admin_view(self.change_view), name="{}_{}_change".format(*names)),
        ]

    # ------------------------------------------------------------------ what each page defines

    def rows(self, app: DjangoHoldfast, params: Any) -> tuple[list[dict[str, Any]], str | None]:
        """The rows of the list, and where the next page begins."""
        raise NotImplementedError

    def facts(self, app: DjangoHoldfast, id: str) -> tuple[dict[str, Any], list[str]]:
        """The fields of one entry, and the verbs that its state allows."""
        raise NotImplementedError

    def filters(self) -> list[tuple[str, str]]:
        """Ready-made filters: label and query text."""
        return []

    # ------------------------------------------------------------------ views

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """The list. A POST runs one verb on the chosen rows."""
        self._need(self.has_view_or_change_permission(request))
        app = the_app()
        if request.method == "POST":
            return self._act(request, app, request.POST.getlist("chosen"), request.get_full_path())
        rows: list[dict[str, Any]] = []
        after, problem = None, None
        try:
            rows, after = self.rows(app, request.GET)
        except HoldfastError as error:
            problem = str(error)
        context = {
            **self._context(request, app, str(self.opts.verbose_name_plural).capitalize()),
            "rows": rows,
            "problem": problem,
            "older": after and f"?{urlencode({'q': request.GET.get('q', ''), 'after': after})}",
            "q": request.GET.get("q", ""),
            "filters": [(label, f"?{urlencode({'q': text})}", text) for label, text in self.filters()],
            "columns": self.columns,
            "verbs": [(word, label) for word, (label, _) in self.verbs.items()],
        }
        return TemplateResponse(request, "holdfast/admin/list.html", context)

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """One entry. A POST runs one verb on it."""
        self._need(self.has_view_or_change_permission(request))
        app = the_app()
        try:
            if request.method == "POST":
                return self._act(request, app, [object_id], request.path)
            facts, fitting = self.facts(app, object_id)
        except (JobNotFound, CronEntryNotFound) as error:
            raise Http404(str(error)) from None
        context = {
            **self._context(request, app, object_id),
            "facts": facts,
            "verbs": [(word, self.verbs[word][0]) for word in fitting],
        }
        return TemplateResponse(request, "holdfast/admin/entry.html", context)

    def _act(self, request: Any, app: DjangoHoldfast, ids: Sequence[str], back: str) -> Any:
        self._need(self.has_change_permission(request))
        word = request.POST.get("verb", "")
        if word not in self.verbs:
            return HttpResponseNotAllowed(["GET"])
        label, verb = self.verbs[word]
        by, done = f"admin {request.user.get_username()}", 0
        for id in ids:
            try:
                verb(app, id, by)
                done += 1
            except HoldfastError as error:  # a job may have moved on since the page was shown
                messages.error(request, str(error))
        if done:
            messages.success(request, f"{label}: {done} done.")
        return HttpResponseRedirect(back)

    def _need(self, allowed: bool) -> None:
        if not allowed:
            raise PermissionDenied

    def _context(self, request: Any, app: DjangoHoldfast, title: str) -> dict[str, Any]:
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "may_change": self.has_change_permission(request),
            "store": app.safe_url,
            "dashboard": app.configuration.dashboard_url,
            "list_url": reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_changelist"),
        }


def _dashboard(app: DjangoHoldfast, page: str, **params: str) -> str | None:
    base = app.configuration.dashboard_url
    return None if base is None else f"{base.rstrip('/')}/{page}?{urlencode(params)}"


def _job_verb(name: str) -> Verb:
    return lambda app, key, by: getattr(app, name)(key, by=by)


@admin.register(Job)
class JobPages(StorePages):
    """The jobs, newest first, filtered by the query language."""

    columns = ("id", "task", "queue", "state", "attempts", "created", "error")
    verbs = {
        "cancel": ("Cancel", _job_verb("cancel")),
        "retry": ("Run again", _job_verb("retry")),
        "run_now": ("Run now", _job_verb("run_now")),
    }

    def filters(self) -> list[tuple[str, str]]:
        return [("all", ""), *((state.value, f"state:{state.value}") for state in State)]

    def rows(self, app: DjangoHoldfast, params: Any) -> tuple[list[dict[str, Any]], str | None]:
        page = app.jobs(params.get("q") or None, limit=PAGE_ROWS, after=params.get("after") or None).page()
        rows = [{"link": f"{quote(job.id, safe='')}/", "id": job.id, "cells": _job_cells(job)} for job in page.jobs]
        return rows, page.after

    def facts(self, app: DjangoHoldfast, id: str) -> tuple[dict[str, Any], list[str]]:
        job = app.job(id)
        facts: dict[str, Any] = {
            "id": job.id, "task": job.task, "queue": job.queue, "state": job.state.value, "reason": job.reason,
            "arguments": _redact(job.task, plain_args(job._record.args)), "group": job.group, "key": job.key,
            "attempts": job.attempts, "failures": job.failures,
            "created": job.created_at, "due": job.due_at, "started": job.started_at, "finished": job.finished_at,
            "worker": job.worker, "progress": job.progress_text or job.progress,
            "error": None if job.error is None else job.error.traceback or job.error.text,
            "dashboard": _dashboard(app, "job", id=job.id),
        }  # fmt: skip
        if job.state is State.RUNNING:
            fitting = ["cancel"]
        elif job.finished_at is not None or job.state is State.DEAD:
            fitting = ["retry"]
        else:
            fitting = ["cancel", *(["run_now"] if job.state is State.SCHEDULED else [])]
        return facts, fitting


def _job_cells(job: StoredJob[Any]) -> list[Any]:
    error = "" if job.error is None else f"{job.error.type or job.error.reason}: {job.error.text}"[:120]
    return [job.task, job.queue, job.state.value, job.attempts, job.created_at, error]


@admin.register(DeadLetter)
class DeadLetterPages(StorePages):
    """The dead letters, newest failure first."""

    columns = ("id", "task", "queue", "reason", "deaths", "failed", "error")
    verbs = {
        "revive": ("Revive", lambda app, key, by: app.dead.revive(key, by=by)),
        "discard": ("Discard", lambda app, key, by: app.dead.discard(key, by=by)),
    }

    def rows(self, app: DjangoHoldfast, params: Any) -> tuple[list[dict[str, Any]], str | None]:
        begin = _place(params.get("after"))
        found = app.dead.list(params.get("q") or None, limit=begin + PAGE_ROWS + 1)[begin:]
        older = str(begin + PAGE_ROWS) if len(found) > PAGE_ROWS else None
        return [
            {
                "link": f"{quote(letter.id, safe='')}/",
                "id": letter.id,
                "cells": [
                    letter.task, letter.queue, letter.reason, letter.failure_count, letter.failed_at,
                    "" if letter.error is None else f"{letter.error.type}: {letter.error.text}"[:120],
                ],
            }
            for letter in found[:PAGE_ROWS]
        ], older  # fmt: skip

    def facts(self, app: DjangoHoldfast, id: str) -> tuple[dict[str, Any], list[str]]:
        letter = app.dead.get(id)
        facts: dict[str, Any] = {
            "id": letter.id, "task": letter.task, "queue": letter.queue, "reason": letter.reason,
            "arguments": _redact(letter.task, dict(letter.args)), "deaths": letter.failure_count, "key": letter.key,
            "first failed": letter.first_failed_at, "failed": letter.failed_at, "revived": letter.revived_at,
            "revives by itself": letter.revive_at,
            "error": None if letter.error is None else letter.error.traceback or letter.error.text,
            "dashboard": _dashboard(app, "job", id=letter.id),
        }  # fmt: skip
        return facts, [] if letter.revived_at is not None else ["revive", "discard"]


def _place(text: str | None) -> int:
    """Where a page begins. Each page also reads the letters before it, so the position is bounded."""
    return min(int(text), LETTERS_SEEN_MAX) if text and text.isdecimal() and len(text) <= 9 else 0


@admin.register(CronEntry)
class CronEntryPages(StorePages):
    """The cron entries by name."""

    columns = ("name", "when", "task", "next", "last", "fired", "skipped", "paused")
    verbs = {
        "run_now": ("Run now", lambda app, key, by: app.cron.run_now(key)),
        "pause": ("Pause", lambda app, key, by: app.cron.pause(key, by=by)),
        "resume": ("Resume", lambda app, key, by: app.cron.resume(key)),
    }

    def rows(self, app: DjangoHoldfast, params: Any) -> tuple[list[dict[str, Any]], str | None]:
        wanted = params.get("q", "").lower()
        return [
            {
                "link": f"{quote(entry.name, safe='')}/",
                "id": entry.name,
                "cells": [
                    entry.when, entry.task, "ended" if entry.ended else entry.next_at, entry.last_at,
                    entry.fired, entry.skipped,
                    entry.paused_by or "yes" if entry.paused_at is not None else "",
                ],
            }
            for entry in app.cron.list()
            if wanted in entry.name.lower() or wanted in entry.task.lower()
        ], None  # fmt: skip

    def facts(self, app: DjangoHoldfast, id: str) -> tuple[dict[str, Any], list[str]]:
        entry = app.cron.get(id)
        facts: dict[str, Any] = {
            "name": entry.name, "when": entry.when, "task": entry.task, "queue": entry.queue,
            "arguments": _redact(entry.task, dict(entry.args)),
            "next": "ended" if entry.ended else entry.next_at, "last": entry.last_at, "last job": entry.last_job,
            "fired": entry.fired, "skipped": entry.skipped, "overlap": entry.overlap,
            "paused": entry.paused_at, "paused by": entry.paused_by, "pause reason": entry.pause_reason,
            "dashboard": _dashboard(app, "cron"),
        }  # fmt: skip
        return facts, ["run_now", "pause" if entry.paused_at is None else "resume"]
