"""A job's leases over time, as a drawing: a lane per worker, a block per lease with its fence, its end by its outcome.

Called by the job's page with the job's history. Pure. Positions are in percent, so that text never stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup
from msgspec import Struct

from ..inspection.history import HistoryEntry
from .formats import duration, short_worker

LEFT, RIGHT = 24.0, 98.0  # percent: names stand left of the lanes
LANES_MAX = 8
NAME_CHARS_MAX = 18
ROW, TOP = 28, 30  # pixels
HUES = {"failed": "dead", "stalled": "dead", "dead": "dead", "expired": "dead", "succeeded": "succeeded"}
HUES |= {"cancelled": "cancelled", "snooze": "scheduled", "release": "ready"}
_ENDS = frozenset({"succeeded", "dead", "cancelled"})
_NOTES = frozenset({"progress", "renewal"})


_HATCH = Markup(
    '<defs><pattern id="hatch" class="scheduled" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="tick" y2="6"/></pattern></defs>'
)


class Lease(Struct, frozen=True, kw_only=True):
    """One lease."""

    worker: str
    fence: int
    start: float
    end: float
    outcome: str  # empty: it runs
    notes: tuple[HistoryEntry, ...] = ()  # progress reports and late renewals


def leases(entries: Sequence[HistoryEntry], now: float) -> list[Lease]:
    """The leases of a job: each from its claim to the first entry of the same fence that ends it."""
    found, notes = [], [entry for entry in entries if entry.kind in _NOTES]
    entries = [entry for entry in entries if entry.kind not in _NOTES]
    for place, entry in enumerate(entries):
        if entry.kind != "claimed":
            continue
        ended = next((one for one in entries[place + 1 :] if one.fence == entry.fence and one.kind != "claimed"), None)
        ended = ended or next((one for one in entries[place + 1 :] if one.kind in _ENDS or one.kind == "claimed"), None)
        found.append(
            Lease(
                worker=entry.worker or "a worker",
                fence=entry.fence,
                start=entry.at.timestamp(),
                end=ended.at.timestamp() if ended else now,
                outcome="" if ended is None else "ended" if ended.kind == "claimed" else ended.kind,
                notes=tuple(one for one in notes if one.fence == entry.fence),
            )
        )
    return found


def draw(entries: Sequence[HistoryEntry], now: float, hosts: dict[str, str], state: str) -> Markup:
    """The drawing; empty if there has been no lease."""
    held = leases(entries, now)
    if not held:
        return Markup()
    start = entries[0].at.timestamp()
    finished = next((one.at.timestamp() for one in reversed(entries) if one.kind in _ENDS), None)
    end = max(now if finished is None else finished, start + 0.001)
    scale = _Scale(start, end)
    workers = list(dict.fromkeys(lease.worker for lease in held))[-LANES_MAX:]
    height = TOP + ROW * len(workers) + 34
    parts = [_HATCH, _axis(scale, height), _states(held, scale, state, finished is None)]
    for place, worker in enumerate(workers):
        y = TOP + ROW * place
        parts.append(
            Markup('<text class="lane" x="0" y="{}">{}</text>').format(
                y + 15, _cut(hosts.get(worker, short_worker(worker)))
            )
        )
        for lease in held:
            if lease.worker == worker:
                parts += [_block(lease, y, scale), *(_note(one, y, scale) for one in lease.notes)]
    return Markup('<svg class="lanes" height="{}" role="img" aria-label="{}">{}</svg>').format(
        height, _said(held, hosts), Markup().join(parts)
    )


def _cut(name: str) -> str:
    """As much of a name as fits beside the lanes."""
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: NAME_CHARS_MAX - 1]}…"


class _Scale(Struct, frozen=True):
    start: float
    end: float

    def x(self, at: float) -> float:
        share = (at - self.start) / (self.end - self.start)
        return LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share))


def _p(value: float) -> str:
    return f"{value:.2f}%"


def _axis(scale: _Scale, height: int) -> Markup:
    made = []
    for part in range(5):
        at = scale.start + (scale.end - scale.start) * part / 4
        when = datetime.fromtimestamp(at, UTC)
        whole = scale.end - scale.start
        text = (
            f"{when:%H:%M:%S}" if whole < 7200 else f"{when:%H:%M}" if whole < 86400 else f"{when.day} {when:%b %H:%M}"
        )
        text = f"+ {duration(at - scale.start)}" if whole < 20 and part else text
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        made.append(
            Markup(
                '<line class="rule" x1="{0}" x2="{0}" y1="0" y2="{1}"/>'
                '<text{5} x="{0}" y="{2}" text-anchor="{3}">{4}</text>'
            ).format(_p(scale.x(at)), height - 22, height - 6, anchor, text, Markup(' class="p2"') if part % 2 else "")
        )
    return Markup().join(made)


def _states(held: Sequence[Lease], scale: _Scale, state: str, open_ended: bool) -> Markup:
    """The line on top: waiting for its first lease, running, and between two leases."""
    spans, at = [], scale.start
    for lease in held:
        spans.append((at, lease.start, "ready" if at == scale.start else "scheduled"))
        spans.append((lease.start, lease.end, "running"))
        at = lease.end
    if open_ended and held[-1].outcome:
        spans.append((at, scale.end, state))
    rect = Markup('<rect class="solid {}" x="{}" width="{}" y="8" height="6" rx="2"/>')
    drawn = [
        rect.format(hue, _p(scale.x(first)), _p(max(0.3, scale.x(last) - scale.x(first))))
        for first, last, hue in spans
        if last > first
    ]
    return Markup('<text class="lane" x="0" y="15">State</text>') + Markup().join(drawn)


def _block(lease: Lease, y: int, scale: _Scale) -> Markup:
    x, width = scale.x(lease.start), max(0.6, scale.x(lease.end) - scale.x(lease.start))
    hue = HUES.get(lease.outcome, "running")
    end = Markup('<line class="end {0}" x1="{1}" x2="{1}" y1="{2}" y2="{3}"/>')
    said = lease.outcome or "running"
    near = x + width < 80
    beside = near or x > LEFT + 20  # else the words only fit inside the block
    label = f"{lease.fence % 10000}" if width > 5 else ""
    label = label if beside else f"{label} · {said}"
    return Markup(
        '<g class="running"><title>{}</title><rect class="blk" x="{}" width="{}" y="{}" height="18" rx="3"/>'
        '<text class="in{}" x="{}" y="{}" text-anchor="middle">{}</text></g>{}'
        '<text class="{} in" x="{}" y="{}" text-anchor="{}" dx="{}">{}</text>'
    ).format(
        f"fence {lease.fence}, {duration(lease.end - lease.start)}, {said}",
        _p(x),
        _p(width),
        y,
        " p2" if width < 12 else "",  # too narrow for it on a phone
        _p(x + width / 2),
        y + 13,
        label,
        end.format(hue, _p(x + width), y, y + 18) if lease.outcome else Markup(),
        hue,
        _p(x + width if near else x),
        y + 13,
        "start" if near else "end",
        6 if near else -6,
        said if beside else "",
    )


_TICK = Markup('<g class="running"><title>{0}</title><line class="tick" x1="{1}" x2="{1}" y1="{2}" y2="{3}"/></g>')
_GAP = Markup(
    '<g class="scheduled"><title>{}</title><rect class="gap" x="{}" width="{}" y="{}" height="4" rx="2"/></g>'
)


def _note(entry: HistoryEntry, y: int, scale: _Scale) -> Markup:
    """Above the fence, a tick for a progress report; below it, the gap of a late renewal."""
    at = entry.at.timestamp()
    if entry.kind == "progress":  # without its text, which not every visitor may see
        said = "progress" if entry.progress is None else f"progress {entry.progress:.0%}"
        return _TICK.format(said, _p(scale.x(at)), y, y + 5)
    first = scale.x(at - (entry.gap or 0.0))
    return _GAP.format(f"renewed {entry.text}", _p(first), _p(max(0.3, scale.x(at) - first)), y + 14)


def _said(held: Sequence[Lease], hosts: dict[str, str]) -> str:
    told = [
        f"Lease with fence {lease.fence} on {hosts.get(lease.worker, short_worker(lease.worker))} from "
        f"{datetime.fromtimestamp(lease.start, UTC):%H:%M:%S} for {duration(lease.end - lease.start)}, "
        f"{lease.outcome or 'running'}."
        for lease in held[-LANES_MAX:]
    ]
    return " ".join(told)
