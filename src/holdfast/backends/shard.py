"""What a shard implements beyond the contract: dependencies on jobs in other shards (R115 to R119).

Called by the router (sharded/), implemented by the Redis store. A shard never talks to another one: it records in its
outbox, in the step that makes it necessary, what another shard must do or know. The router delivers the notes, any
number of times and in any process, and removes each by its tick once it is delivered.

R115. A parent elsewhere. A job may wait for one in another shard (`Ties.parents`): the edge is stored here as any
  other, open at first, with the parent's shard, and a note `watch` asks that shard to report how it ends. Prune
  and delete of the child forget the parent with its last edge.
R116. A watcher. `watch` lists a shard with a job: whenever that job finishes or comes back (R85), a note `news` says so
  in the same step. A job with a watcher is not deleted (StateConflict). Nor is it pruned: that is put off (R85), and a
  note `ask` asks whether it is still needed. `unwatch` ends both.
R117. News say which state a parent is in, and carry a tick of its shard. `follow` brings the edges of that parent in
  line, as if it were here (R83, R84), unless it knows news with a higher tick: so news that are late, repeated or out
  of order change nothing. A sealed store follows.
R118. A job that belongs to another shard can be stored here as a note (`Ties.notes`), in one step with the jobs that
  belong here, or with the end of a lease. Its notes come before any other note of this step.
  A noted job names the shards that have children of it (`Noted.watchers`): they watch it from the step that stores it.
R119. Notes are delivered oldest first; none is lost, and one that changed since it was read stays. A note of a job is
  accepted by a sealed store, as is the job when it is delivered (`Ties.noted`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ..lifecycle import Settlement, State
from ..records import Answer, Enqueued, NewJob
from .contract import Backend

OUTBOX_BYTES = 1_048_576  # of noted jobs that one look at an outbox brings: a note has a whole job, arguments included

PostKind = Literal["job", "watch", "news", "ask"]
Unless = Literal["unfinished", "waiting", "never"]

KINDS: tuple[PostKind, ...] = ("job", "watch", "news", "ask")


class Join(Struct, frozen=True):
    """A job here that waits for others, and from now on for a new one in another shard, too (R87)."""

    waiting: str
    parent: str
    shard: str  # of the parent


class Noted(NewJob, frozen=True, kw_only=True):
    """A job of another shard. Jobs in `watchers` wait for it, so it must not go before they hear of its end."""

    watchers: tuple[str, ...] = ()


class Ties(Struct, frozen=True, kw_only=True):
    """What a step stores besides its jobs, for the sake of other shards."""

    parents: Mapping[str, str] = {}  # a parent elsewhere, of a job of this step → its shard
    joins: tuple[Join, ...] = ()
    watchers: tuple[tuple[str, str], ...] = ()  # a job of this step, and a shard that must hear of its end
    notes: tuple[Noted, ...] = ()  # jobs of other shards
    noted: bool = False  # the jobs were accepted before, as notes: a sealed store takes them; joins may be too late


class News(Struct, frozen=True):
    """What has become of a job that others elsewhere wait for."""

    parent: str
    state: State
    task: str
    tick: int


class Post(Struct, frozen=True, kw_only=True):
    """A note of the outbox."""

    kind: PostKind
    name: str  # the id of the job that it is about
    tick: int  # of the note; it is removed by name and tick
    job: Noted | None = None  # of kind job
    shard: str = ""  # of kind watch: where the parent is
    shards: tuple[str, ...] = ()  # of kind news and ask: where it is watched from
    news: News | None = None  # of kind news


class Shard(Backend):
    """A store that can be a shard."""

    @abstractmethod
    async def enqueue_tied(self, jobs: Sequence[NewJob], ties: Ties, now: float | None = None) -> list[Enqueued]:
        """`enqueue`, in one step with ties. A join is refused as `before` is; with `noted` one too late is left out."""

    @abstractmethod
    async def settle_tied(
        self, settlement: Settlement, jobs: Sequence[NewJob], ties: Ties, now: float | None = None
    ) -> Answer:
        """`settle_with`, in one step with ties."""

    @abstractmethod
    async def watch(self, parents: Sequence[str], shard: str, now: float | None = None) -> list[News]:
        """List a shard with these jobs, and return what has become of them so far; jobs not here are left out."""

    @abstractmethod
    async def unwatch(self, parent: str, shard: str) -> None:
        """Tell that shard no more."""

    @abstractmethod
    async def follow(self, news: Sequence[News], now: float | None = None) -> None:
        """Let jobs here follow parents elsewhere; news about others change nothing."""

    @abstractmethod
    async def let_go(self, parent: str, unless: Unless, now: float | None = None) -> str | None:
        """Forget a parent elsewhere and its edges, unless a child here has not finished, or waits for it.

        Returns that child, and then nothing is changed.
        """

    @abstractmethod
    async def outbox(self, limit: int, after: int = 0) -> list[Post]:
        """The oldest notes with a higher tick, in their order, `limit` at most and no more once their jobs have
        OUTBOX_BYTES: a call must end in time however large they are. One that cannot be read has no job."""

    @abstractmethod
    async def delivered(self, posts: Sequence[Post]) -> None:
        """Remove these notes; one that was noted again meanwhile, with another tick, stays."""

    @abstractmethod
    async def elsewhere(self, parents: Sequence[str]) -> Mapping[str, str]:
        """Those of these jobs that are parents elsewhere → their shards."""

    @abstractmethod
    async def watchers(self, job_id: str) -> list[str]:
        """The shards that watch a job."""
