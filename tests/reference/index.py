"""Every row of the reference, and every order in which rows are looked up.

Called by store.py. Jobs change state, and the fields they are found by, in ONE place: `move`. All sorted structures
are derived there from the job's own state, so none of them can say something else than the job does. It decides
nothing: which state follows is store.py's business.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from holdfast.backends.shard import Noted, PostKind
from holdfast.dependencies import Edge, EdgeStatus
from holdfast.lifecycle import LIVE, UNSTARTED, State
from holdfast.records import CronEntry, DeadLetter, Flow, LogLine, Mark, Override, Pause, QueueRule, TaskRule
from holdfast.steps import Step

from .ranked import Ranked
from .rows import Group, GroupName, Holder, KeyName, LaneName, Logical, Row, Scope

if TYPE_CHECKING:
    from .elsewhere import Elsewhere


class Index:
    """Rows by id, and by what each verb asks for."""

    def __init__(self) -> None:
        self.jobs: dict[str, Row] = {}  # in the order of seq
        self.workers: dict[str, Holder] = {}
        self.letters: dict[Logical, DeadLetter] = {}
        self.logs: dict[str, list[LogLine]] = {}
        self.marks: dict[str, list[Mark]] = {}
        self.remembered: dict[str, float] = {}  # ids of deleted jobs, and until when they are known
        self.rules: dict[str, QueueRule] = {}
        self.task_rules: dict[str, TaskRule] = {}
        self.overrides: dict[Scope, Override] = {}
        self.flows: dict[Scope, Flow] = {}
        self.pauses: dict[Scope, Pause] = {}
        self.entries: dict[str, CronEntry] = {}
        self.edges: dict[tuple[str, str], Edge] = {}  # by parent and child
        self.parents_of: dict[str, dict[str, None]] = {}
        self.children_of: dict[str, dict[str, None]] = {}
        self.steps: dict[str, dict[tuple[str, str], Step]] = {}  # of each job, by kind and name
        self.propagating: dict[str, None] = {}  # parents whose edges may be out of line, oldest first
        self.elsewhere: dict[str, Elsewhere] = {}  # parents in other shards
        self.watchers: dict[str, dict[str, EdgeStatus]] = {}  # of a job: shards that are notified of its end
        self.outbox: dict[tuple[PostKind, str], int] = {}  # notes for other shards, oldest first, with their ticks
        self.notes: dict[str, Noted] = {}  # jobs of other shards
        self.ended: dict[str, None] = {}  # jobs that finished or came back in the step under way
        # derived, below: changed by move, insert, remove and keep_letter alone
        self.groups: dict[GroupName, Group] = {}
        self.key_holders: dict[KeyName, str] = {}
        self.lanes: defaultdict[LaneName, Ranked[str]] = defaultdict(Ranked)
        self.running_tasks: defaultdict[str, int] = defaultdict(int)
        self.waking: Ranked[Scope] = Ranked()  # groups whose rate lets the next job start then
        self.due: Ranked[str] = Ranked()
        self.expiring: Ranked[str] = Ranked()
        self.prunable: Ranked[str] = Ranked()
        self.revivals: Ranked[Logical] = Ranked()
        self.letter_of: dict[str, Logical] = {}  # by the id of the job that holds the letter
        self.counts: defaultdict[str, dict[State, int]] = defaultdict(lambda: dict.fromkeys(State, 0))
        # for the end of the step: groups to refill, queues that may have work
        self.touched: dict[GroupName, None] = {}
        self.stirred: set[str] = set()

    def knows(self, job_id: str, wall: float) -> bool:
        """Whether a job of that id exists, or was deleted not long ago."""
        return job_id in self.jobs or self.remembered.get(job_id, 0.0) > wall

    def insert(self, row: Row) -> None:
        self.jobs[row.id] = row
        self._enter(row)

    def remove(self, row: Row) -> None:
        self._leave(row)
        self._touch_waited(row, None)
        del self.jobs[row.id]
        self.logs.pop(row.id, None)
        self.marks.pop(row.id, None)
        self.steps.pop(row.id, None)
        self.forget_edges(row.id)
        self.parents_of.pop(row.id, None)
        self.watchers.pop(row.id, None)
        self.propagating.pop(row.id, None)
        self.ended.pop(row.id, None)

    def forget_edges(self, job_id: str) -> None:
        for parent, child in [edge for edge in self.edges if job_id in edge] if self.edges else ():
            del self.edges[parent, child]
            for related, one, other in ((self.children_of, parent, child), (self.parents_of, child, parent)):
                del related[one][other]
                if not related[one] and related is self.children_of:
                    del related[one]
            if parent not in self.children_of:
                self.elsewhere.pop(parent, None)

    def move(self, row: Row, state: State, **changes: Any) -> None:
        """Bring a job into `state` with `changes` to its fields. THE place where either happens."""
        self._leave(row)
        self._touch_waited(row, state)
        if row.state.finished != state.finished:
            self.ended[row.id] = None
        for name, value in changes.items():
            setattr(row, name, value)
        row.state = state
        if state is not State.READY:
            row.rank = 0
        self._enter(row)

    def keep_letter(self, logical: Logical, letter: DeadLetter) -> None:
        """Store the one letter of a logical job."""
        self.drop_letter(logical)
        self.letters[logical] = letter
        self.letter_of[letter.id] = logical
        if letter.revive_at is not None:
            self.revivals.add(letter.revive_at, logical)

    def drop_letter(self, logical: Logical) -> DeadLetter | None:
        letter = self.letters.pop(logical, None)
        if letter is not None:
            del self.letter_of[letter.id]
            self.revivals.discard(logical)
        return letter

    def _leave(self, row: Row) -> None:
        state = row.state
        self.counts[row.queue][state] -= 1
        if row.holds_key:
            del self.key_holders[row.key_name]
        if row.expires_at is not None and state in UNSTARTED:
            self.expiring.remove(row.id)
        if state is State.READY:
            self.lanes[row.lane_name].remove(row.id)
        elif state is State.SCHEDULED:
            self.due.remove(row.id)
        elif state is State.RUNNING:
            del self.workers[row.worker or ""].leases[row.id]
            self.running_tasks[row.task] -= 1
            self._place_freed(row)
        elif row.prune_at is not None and state not in LIVE:
            self.prunable.remove(row.id)
        if row.group is not None and (state in LIVE or row.stops):
            self._leave_group(row, (row.queue, row.group))

    def _place_freed(self, row: Row) -> None:
        """A lease ended. What that means to limits is flow.py's business."""

    def keep_flow(self, flow: Flow) -> None:
        """Store a bucket; one that says when its group is to be refilled is found by that time."""
        scope = (flow.queue, flow.group, flow.task)
        self.waking.discard(scope)
        self.flows[scope] = flow
        if flow.wakes_at is not None:
            self.waking.add(flow.wakes_at, scope)

    def drop_flow(self, scope: Scope) -> None:
        self.waking.discard(scope)
        del self.flows[scope]

    def _leave_group(self, row: Row, name: GroupName) -> None:
        group = self.groups[name]
        if row.state is State.WAITING:
            group.waiting.remove(row.id)
        elif row.state is State.SCHEDULED and not row.held:
            del group.scheduled[row.id]
        else:  # a place in play is free
            del _in_play(group, row)[row.id]
            self.touched[name] = None
        if group.empty:
            del self.groups[name]

    def _touch_waited(self, row: Row, state: State | None) -> None:
        """A job that waited leaves without being started: one with a lower order may come first now."""
        if row.state is State.WAITING and row.group is not None and state not in (State.READY, State.RUNNING):
            self.touched[row.queue, row.group] = None

    def _enter(self, row: Row) -> None:
        state = row.state
        self.counts[row.queue][state] += 1
        if row.holds_key:
            self.key_holders[row.key_name] = row.id
        if row.expires_at is not None and state in UNSTARTED:
            self.expiring.add(row.expires_at, row.id)
        if state is State.READY:
            self.lanes[row.lane_name].add((-row.rank, row.turn, row.seq), row.id)
            self.stirred.add(row.queue)
        elif state is State.SCHEDULED:
            self.due.add((row.due_at, row.seq), row.id)
            first = self.due.first()
            if first is not None and first[1] == row.id:  # sooner than what sleepers reckon with
                self.stirred.add(row.queue)
        elif state is State.RUNNING:
            self.workers[row.worker or ""].leases[row.id] = row
            self.running_tasks[row.task] += 1
        elif row.prune_at is not None and state not in LIVE:
            self.prunable.add((row.prune_at, row.seq), row.id)
        if row.group is not None and (state in LIVE or row.stops):
            self._enter_group(row, (row.queue, row.group))

    def _enter_group(self, row: Row, name: GroupName) -> None:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group()
        if row.state is State.WAITING:
            group.waiting.add(row.place, row.id)
            self.touched[name] = None
        elif row.state is State.SCHEDULED and not row.held:
            group.scheduled[row.id] = row
            if row.staged:
                self.touched[name] = None
        else:
            _in_play(group, row)[row.id] = row


def _in_play(group: Group, row: Row) -> dict[str, Row]:
    if row.state is State.READY:
        return group.ready
    if row.stops:
        return group.dead
    return group.running if row.state is State.RUNNING else group.held
