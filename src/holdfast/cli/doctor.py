"""`holdfast doctor`: what prevents jobs from running here, in one table.

Loaded by main when called. Checks this machine, the store, its workers and, with --app, the app's code; changes
nothing. A check that fails to run becomes a finding, so that one problem does not hide the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from ..errors import BackendUnavailable, HoldfastError, OutcomeUnknown
from ..inspection.coverage import AppFacts, judge_service, look_at_service
from ..inspection.machine import Finding, all_well, fine, judge_machine, look_at_machine, note, wrong
from ..inspection.pace import judge_pace, look_at_pace
from ..inspection.store_health import judge_store, look_at_store
from .app_import import import_modules
from .exits import CommandFailed, Exit
from .parse import counted
from .session import Session, session_options

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..backends import Address
    from ..backends.contract import Backend

T = TypeVar("T")
VERDICTS = ("fine", "note", "wrong")


@click.command()
@session_options
def doctor(session: Session) -> int:
    """Find out what keeps jobs from running: check this machine, the store, its workers and, with --app, the app.

    Exit code 0: nothing is wrong; 1: something is; 4: the store cannot be reached.
    """
    findings: list[Finding] = []
    code = _attempt("app", lambda: _import(session), findings) if session.has_code else None
    address = _attempt("store", lambda: _address(session), findings)
    app = None if code is None else _app_facts(session, code)
    if app is not None:
        number = counted(len(app.tasks), "tasks")
        findings.append(fine("app", f"{app.name} is imported, with {number}.", tasks=sorted(app.tasks)))
    exit = Exit.DONE
    if address is not None:
        exit = _look_at_store(session, address, app, findings)
    machine = judge_machine(look_at_machine(), "" if address is None else address.scheme)
    findings = [*machine, *findings]
    if exit is Exit.DONE and not all_well(findings):
        exit = Exit.FAILED
    _show(session, findings, None if address is None else address.safe_url)
    return exit


def _attempt(about: str, ask: Callable[[], T], findings: list[Finding]) -> T | None:
    """The result; None, and a finding, if it fails."""
    try:
        return ask()
    except CommandFailed as error:
        findings.append(wrong(about, error.text, error.hint))
    except HoldfastError as error:
        findings.append(wrong(about, str(error)))
    return None


def _import(session: Session) -> Holdfast:
    code = session.code
    import_modules(code.imports)
    return code


def _address(session: Session) -> Address:
    """Which store; CommandFailed if only the app knows, and it cannot be imported."""
    from ..app import Holdfast
    from ..backends import parse_url

    try:
        named = session.named_url
    except CommandFailed:  # already reported, as a problem of the app
        raise CommandFailed(
            Exit.FAILED, "not checked: only the app knows which store it uses.", "Give --url."
        ) from None
    return parse_url(Holdfast(named).url)


def _app_facts(session: Session, code: Holdfast) -> AppFacts:
    tasks = code.tasks
    return AppFacts(
        name=session.app_name,
        tasks={name: task.defaults.queue for name, task in tasks.items()},
        aliases=frozenset(alias for task in tasks.values() for alias in task.defaults.aliases),
        catch_all=next((name for name, task in tasks.items() if task.defaults.catch_all), None),
        isolated=frozenset(task.defaults.queue for task in tasks.values() if task.defaults.isolation == "process"),
    )


def _look_at_store(session: Session, address: Address, app: AppFacts | None, findings: list[Finding]) -> Exit:
    """Add findings about the store; returns what its reachability means for the exit code."""
    from ..app import Holdfast

    if address.scheme == "memory":
        findings.append(
            note("store", "memory:// lives inside one process, so there is no store to check.", "Give --url.")
        )
        return Exit.DONE
    found: list[Finding] = []
    try:
        with Holdfast(address.url) as store:
            session.check_store(store, create=False)
            found = asyncio.run(_ask(store._open_backend(), address, app))
    except CommandFailed as error:
        findings.append(wrong("store", error.text, error.hint))
        return error.exit
    except (BackendUnavailable, OutcomeUnknown) as error:
        findings.append(wrong("store", str(error), "Is the server running, and the URL right?", url=address.safe_url))
        return Exit.UNREACHABLE
    except HoldfastError as error:  # reachable, but not usable as it is
        findings.append(wrong("store", str(error), url=address.safe_url))
        return Exit.DONE
    findings += found
    return Exit.DONE


async def _ask(backend: Backend, address: Address, app: AppFacts | None) -> list[Finding]:
    try:
        await backend.open()
        look = await look_at_store(backend, address)
        service = await look_at_service(backend, tasks=app is not None)
        pace = await look_at_pace(backend)
    finally:
        await backend.close()
    return [*judge_store(look), *judge_service(service, app), *judge_pace(pace)]


def _show(session: Session, findings: list[Finding], url: str | None) -> None:
    counts = {verdict: sum(one.verdict == verdict for one in findings) for verdict in VERDICTS}
    if session.as_json:
        documents = [
            {"about": one.about, "verdict": one.verdict, "text": one.text, "next": one.next, "facts": dict(one.facts)}
            for one in findings
        ]
        session.print.document({"store": url, "well": not counts["wrong"], **counts, "findings": documents})
        return
    rows = [(one.verdict, one.about, one.text, one.next) for one in findings]
    session.print.sentences(("verdict", "about", "finding", "next"), rows)
    session.print.note(", ".join(f"{number} {verdict}" for verdict, number in counts.items()) + ".")
