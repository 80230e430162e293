"""Draws terminal screens of real runs for the docs: `python docs/draw_terminal.py`.

Makes a small shop in a temporary folder, runs its jobs, and draws what the commands print as SVG files in images/. Run
it again when the command line changed; ids, times and process numbers differ each time. The names of this machine, its
kernel and the folder are replaced.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
COLUMNS = 104
HOLDFAST = str(Path(sys.executable).parent / "holdfast")

SHOP = """
from holdfast import Bury, Context, Holdfast, RetryPolicy

app = Holdfast("sqlite:///shop.db")
app.queue("mail", rate="30/m")


@app.task(queue="mail", retry=RetryPolicy(limit=5, base=60))
def send(ctx: Context, to: str) -> str:
    ctx.log("connecting to the mail server")
    if to.endswith("example.org"):
        raise ConnectionError("mail.example.org does not answer")
    return f"sent to {to}"


@app.task(queue="orders", group=lambda order: order)
def ship(order: str, step: str) -> str:
    return f"{order}: {step}"


@app.task(retry=0)
def charge(order: str, card: str) -> str:
    if card == "expired":
        raise Bury("the card has expired")
    return "charged"


@app.task(queue="reports")
def report(month: str) -> str:
    return f"report of {month}"
"""

PREPARE = """
from shop import app, charge, report, send, ship

for order, card in (("A17", "4711"), ("B4", "expired"), ("C9", "4712")):
    charge.enqueue(order, card)
for name in ("ann@example.com", "ben@example.org", "cleo@example.com"):
    send.enqueue(name)
for step in ("pick", "pack", "send"):
    ship.enqueue("A17", step)
app.work(drain=True)
for step in ("pick", "pack"):
    ship.enqueue("C9", step)
send.options(delay=3600, id="welcome-dora").enqueue("dora@example.com")
report.options(id="report-october").enqueue("2026-10")
app.pause(queue="orders", reason="stocktaking", by="ann")
app.close()
"""

# picture → command
SCREENS = {
    "terminal-jobs": "holdfast jobs",
    "terminal-explain": "holdfast explain report-october",
    "terminal-dead": "holdfast dead ls",
    "terminal-stats": "holdfast stats",
    "terminal-queues": "holdfast queues",
    "terminal-doctor": "holdfast doctor --app shop:app",
    "terminal-work": "holdfast work shop:app -q reports --drain",
}

# As rich's own template, without the fonts that it loads from elsewhere.
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
    [
        (125, 133, 144),
        (255, 161, 152),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (255, 255, 255),
    ],
)


def run(command: list[str], folder: Path) -> str:
    """What a command prints on a terminal: both streams, in colour."""
    settings = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "HOLDFAST_URL": "sqlite:///shop.db",
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "TTY_COMPATIBLE": "1",
    }
    done = subprocess.run(  # noqa: S603 (our own commands)
        command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode not in (0, 1):  # 1: doctor found something
        raise SystemExit(f"{command} ended with {done.returncode}\n{done.stdout}")
    printed = done.stdout
    for ours, shown in ((socket.gethostname(), "shop-1"), (str(folder), "/srv/shop"), (platform.release(), "6.12")):
        printed = printed.replace(ours, shown)
    return printed


def drawn(name: str, command: str, printed: str) -> str:
    """One screen as SVG."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.assemble(("$ ", "bright_black"), (command, "bold")))
        console.print(Text.from_ansi(printed.rstrip()), soft_wrap=False)
        picture = console.export_svg(title=command, theme=THEME, code_format=FRAME, unique_id=name)
    titled = picture.replace("<style>", f"<title>{command}</title>\n<style>", 1)
    return "\n".join(line.rstrip() for line in titled.splitlines()) + "\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "shop.py").write_text(SHOP, encoding="utf-8")
        (folder / "prepare.py").write_text(PREPARE, encoding="utf-8")
        run([sys.executable, "prepare.py"], folder)
        for name, command in SCREENS.items():
            printed = run([HOLDFAST, *command.split()[1:]], folder)
            (IMAGES / f"{name}.svg").write_text(drawn(name, command, printed), encoding="utf-8")
            print(f"drew {name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
