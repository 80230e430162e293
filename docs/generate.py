"""Rewrites the parts of the docs that are made from other files: `python docs/generate.py`.

Run by whoever changed the state machine, the command line, the events, the error tree or deploy/; the tests in
tests/docs compare what it would write with what is there. Touches only what stands between a pair of markers, and
never invents a sentence: every word in those blocks comes from the code's own docstrings and help texts, or the file.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from holdfast import errors, events
from holdfast.cli.main import SECTIONS, cli
from holdfast.lifecycle import TRANSITIONS
from holdfast.metrics import STORE_METRICS, WORKER_METRICS, Metric

DOCS = Path(__file__).parent


def marks(block: str, by: str = "docs/generate.py") -> tuple[str, str]:
    """The two lines between which a generated block stands; they name who writes it."""
    return f"<!-- generated: {block} ({by}) -->", f"<!-- end: {block} -->"


def replaced(page: str, block: str, body: str, by: str = "docs/generate.py") -> str:
    """The page with the block's body exchanged."""
    opening, closing = marks(block, by)
    before, found, rest = page.partition(opening)
    if not found or closing not in rest:
        raise SystemExit(f"the markers of {block!r} are missing: {opening} … {closing}")
    after = rest.partition(closing)[2]
    return f"{before}{opening}\n\n{body.strip()}\n\n{closing}{after}"


# ---------------------------------------------------------------------- the state machine


def transitions_table() -> str:
    """Verb by verb: from which state to which."""
    lines = ["| verb | from | to |", "|---|---|---|"]
    for verb, starts in TRANSITIONS.items():
        for start, ends in starts.items():
            targets = ", ".join(f"`{end.value}`" for end in sorted(ends)) or "the job is gone"
            lines.append(f"| {verb.value} | {'no job' if start is None else f'`{start.value}`'} | {targets} |")
    return "\n".join(lines)


# ---------------------------------------------------------------------- the command line


def command_line() -> str:
    """Every command with its own help."""
    parts: list[str] = []
    root = click.Context(cli, info_name="holdfast")
    for section, commands in SECTIONS.items():
        parts.append(f"## {section}")
        for name in commands:
            command = cli.get_command(root, name)
            if command is None:
                raise SystemExit(f"the command line names {name!r} and does not have it")
            parts.extend(_command(command, f"holdfast {name}", root))
    return "\n\n".join(parts)


def _command(command: click.Command, path: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, parent=parent, info_name=path.rpartition(" ")[2])
    yield f"### `{path}`"
    yield _cell(inspect.cleandoc(command.help or "").replace("\n", " "))
    if isinstance(command, click.Group):
        if command.invoke_without_command:
            yield from _usage(command, path)
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            if member is not None:
                yield from _command(member, f"{path} {name}", context)
        return
    yield from _usage(command, path)


def _usage(command: click.Command, path: str) -> Iterator[str]:
    named = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    words = [path, "[OPTIONS]", *(argument.metavar or (argument.name or "").upper() for argument in named)]
    yield f"```text\n{' '.join(words)}\n```"
    rows = [_option_row(option) for option in command.params if isinstance(option, click.Option)]
    yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    if command.epilog:
        yield _cell(command.epilog)


def _option_row(option: click.Option) -> str:
    # Not click's own help record: its spelling differs from version to version.
    if option.hidden:
        raise SystemExit(f"the option {option.opts} is hidden; say it or drop it")
    takes = ""
    if not (option.is_flag or option.count):
        choices = option.type.choices if isinstance(option.type, click.Choice) else ()
        takes = f" {option.metavar or '|'.join(map(str, choices)) or option.name.upper()}"
    default = f" [{option.default}]" if option.show_default else ""
    return f"| `{_cell(', '.join(option.opts) + takes)}` | {_cell((option.help or '') + default)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---------------------------------------------------------------------- events and errors


def events_table() -> str:
    """Every event, when it is told and what it carries."""
    lines = ["| event | when | fields |", "|---|---|---|"]
    for name, kind in events.EVENTS.items():
        fields = ", ".join(f"`{field}`" for field in kind.__struct_fields__)
        lines.append(f"| `{name}` | {_cell(inspect.getdoc(kind) or '')} | {fields} |")
    return "\n".join(lines)


def metrics_table(metrics: Iterable[Metric]) -> str:
    """Each metric, what it is and how it is told apart."""
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines)


def errors_tree() -> str:
    """The tree as errors.py draws it."""
    drawn = inspect.getdoc(errors) or ""
    tree = [line for line in drawn.splitlines() if "HoldfastError" in line or "──" in line]
    return "\n".join(["```text", *(line.removeprefix("    ").rstrip() for line in tree), "```"])


# ---------------------------------------------------------------------- files of deploy/


def deploy_file(name: str, language: str) -> Callable[[], str]:
    """A recipe of deploy/ as a fenced block."""
    return own_file(f"deploy/{name}", language)


def own_file(name: str, language: str) -> Callable[[], str]:
    """A file of the repository as a fenced block."""
    return lambda: f"```{language}\n{(DOCS.parent / name).read_text(encoding='utf-8').strip()}\n```"


BLOCKS: dict[str, tuple[str, Callable[[], str]]] = {
    "transitions table": ("lifecycle.md", transitions_table),
    "commands": ("reference/cli.md", command_line),
    "events": ("reference/events.md", events_table),
    "errors": ("reference/errors.md", errors_tree),
    "deploy/Dockerfile": ("how-to/containers.md", deploy_file("Dockerfile", "dockerfile")),
    "deploy/compose.yaml": ("how-to/containers.md", deploy_file("compose.yaml", "yaml")),
    "deploy/kubernetes.yaml": ("how-to/containers.md", deploy_file("kubernetes.yaml", "yaml")),
    "deploy/holdfast-worker.service": ("how-to/systemd.md", deploy_file("holdfast-worker.service", "ini")),
    "deploy/holdfast-dashboard.service": ("how-to/systemd.md", deploy_file("holdfast-dashboard.service", "ini")),
    "store metrics": ("how-to/observability.md", lambda: metrics_table(STORE_METRICS.values())),
    "worker metrics": ("how-to/observability.md", lambda: metrics_table(WORKER_METRICS.values())),
    "examples/statsd": ("how-to/observability.md", own_file("examples/statsd/statsd.py", "python")),
}


def regenerated() -> dict[Path, str]:
    """Every page with a generated block, as it should be."""
    pages: dict[Path, str] = {}
    for block, (name, make) in BLOCKS.items():
        path = DOCS / name
        pages[path] = replaced(pages.get(path) or path.read_text(encoding="utf-8"), block, make())
    return pages


def main() -> int:
    for path, text in regenerated().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"rewrote {path.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
