"""`holdfast`: the root of the command line.

Started by the console script and `python -m holdfast.cli`. Knows each command's name and one-line help, and imports a
command's module only when that command runs, so that --version and --help stay fast. Every error ends here.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from .. import __version__
from ..lazy import uncollected
from ..names import nearest
from .exits import Exit, tell

# section → command → (module, one-line help)
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start here": {
        "demo": ("demo", "See a worker killed in mid-job and nothing lost (under 30 s)."),
        "work": ("work", "Run a worker for MODULE:APP."),
        "dev": ("dev", "Worker, dashboard and reload of changed code in one command."),
        "enqueue": ("enqueue", "Enqueue a job by its task's name."),
        "publish": ("enqueue", "Enqueue a job of every task that subscribes to a topic."),
    },
    "Look": {
        "jobs": ("jobs", "List jobs, newest first."),
        "job": ("jobs", "Show one job."),
        "batch": ("batch", "Show the jobs of a batch by state, or close or cancel it."),
        "flow": ("flow", "Show the jobs that wait for one another, or cancel or retry them."),
        "explain": ("jobs", "Explain why a job is in its state."),
        "dead": ("dead", "List, count, show, note, revive and discard dead letters."),
        "failures": ("dead", "Group dead letters by cause, with counts and trend."),
        "queues": ("queues", "List queues; limit, pause, resume or empty one."),
        "groups": ("groups", "List groups with unfinished jobs."),
        "group": ("groups", "Show one group, or override its limit and rate."),
        "tasks": ("queues", "List tasks that have limits or rates; change them."),
        "cron": ("cron", "List, show, add and change cron entries."),
        "workers": ("workers", "List workers; pause, resume, resize or stop one, see its stacks."),
        "stats": ("jobs", "Show counts of jobs, letters and workers; statistics over time."),
        "history": ("history", "Show what happened to one job."),
        "watch": ("history", "Follow events of all workers and operators."),
        "metrics": ("metrics", "Print the store's metrics for Prometheus."),
        "dashboard": ("dashboard", "Monitor and control the store in a browser."),
        "top": ("top", "Monitor and control the store in a terminal."),
    },
    "Change": {
        "cancel": ("operate", "Cancel jobs; a running one is asked to stop."),
        "retry": ("operate", "Run finished jobs again with fresh budgets."),
        "run-now": ("operate", "Make scheduled jobs due now."),
        "signal": ("signal", "Send a signal to a job that waits for it."),
        "bury": ("operate", "Turn jobs that have not started into dead letters."),
        "reschedule": ("operate", "Change the due time of jobs that have not started."),
        "edit": ("operate", "Change arguments, queue, group, priority or order of jobs."),
        "delete": ("operate", "Remove jobs that are not running."),
        "keys": ("keys", "Free a unique key that a job holds."),
        "pause": ("operate", "Pause a queue, a group or a task."),
        "resume": ("operate", "End a pause."),
    },
    "The store": {
        "doctor": ("doctor", "Find out what keeps jobs from running."),
        "audit": ("store", "Check the store against every guarantee."),
        "recover": ("store", "Recover the jobs of expired workers now."),
        "prune": ("store", "Remove finished jobs past their retention."),
        "migrate": ("store", "Upgrade the store's schema to this version's."),
        "move": ("move", "Move everything from one store to another."),
        "bench": ("bench", "Measure how fast jobs run on this machine."),
        "completion": ("completion", "Print the completion script of a shell."),
    },
}
COMMANDS = {name: module for commands in SECTIONS.values() for name, (module, _) in commands.items()}


class Root(click.Group):
    """A group that imports a command when it is called, and turns every error into a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        with uncollected():
            loaded = importlib.import_module(f"holdfast.cli.{module}")
        command = getattr(loaded, cmd_name.replace("-", "_"))
        if not isinstance(command, click.Command):
            raise TypeError(f"holdfast.cli.{module} has no command {cmd_name!r}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"there is no command {args[0]!r}.{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()], col_max=12)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            answer = super().main(words, "holdfast", complete_var, standalone_mode=False, **extra)
            code = int(answer) if isinstance(answer, int) else Exit.DONE
        except Exception as error:
            code = tell(error, as_json="--json" in words)
        except KeyboardInterrupt as interrupt:
            code = tell(interrupt, as_json="--json" in words)
        if standalone_mode:
            sys.exit(int(code))
        return int(code)


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"holdfast {__version__}")
        ctx.exit()


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 store unreachable, 5 schema, 6 partly done, "
    "7 import failed, 130 interrupted.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Background jobs that hold fast.

    Which store: --url, else the --app's own, else HOLDFAST_URL, else sqlite:///holdfast.db.
    """


def main(args: Sequence[str] | None = None, *, default_map: dict[str, Any] | None = None) -> int:
    """Run the command line; returns the exit code. `default_map`: other defaults, by command and parameter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? instead of failing
    code = cli.main(args, standalone_mode=False, default_map=default_map)
    return int(code)
