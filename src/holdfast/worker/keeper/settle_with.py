"""Settles attempts whose handlers enqueued jobs, each in one step with those jobs, before the exchange with the rest.

Called by the exchange loop. If the store refuses the new jobs, that exchange buries the job that enqueued them: a retry
would most likely be refused again, and nobody would notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ... import events
from ...backends.contract import Backend
from ...context import TEXT_CHARS_MAX, bounded, dotted, ended_as, error_text
from ...errors import HoldfastError, JobNotFound, ParentNotFound, StateConflict, StoreSealed
from ...lifecycle import REMOVED, Ending, Failure, Settlement, State
from ...records import Answer, ClaimRequest, Exchanged, JobRecord, Lease, Release, SettlementWithJobs
from .runners import Runners
from .store_client import StoreClient

REFUSALS = (JobNotFound, ParentNotFound, StateConflict, StoreSealed)


async def settle_with(one: SettlementWithJobs, backend: Backend) -> Answer | HoldfastError:
    """The store's answer, or the error with which it refuses these jobs permanently."""
    try:
        return await backend.settle_with(one, one.jobs)
    except REFUSALS as error:
        return error


def succeeded_under(lease: Lease | None, job: JobRecord | None) -> bool:
    """Whether the job has succeeded, and under this lease: after a loss another worker may have finished it."""
    return lease is not None and job is not None and job.state is State.SUCCEEDED and job.fence == lease.fence


async def committed(store: StoreClient, ends: Sequence[Settlement], leases: Mapping[str, Lease]) -> list[Settlement]:
    """Which of these leases, by token, their handlers have settled as successes in their own transactions (R90).

    Jobs that are not to be kept are removed only here: until now, the row was the proof that they had succeeded.
    """
    found = await store.call("ended", store.backend.ended([one.id for one in ends]))
    done = [
        ended_as(Ending.SUCCEEDED, one) for one in ends if succeeded_under(leases.get(one.token), found.get(one.id))
    ]
    removed = [one.id for one in done if one.retain == REMOVED]
    if removed:
        with suppress(HoldfastError):  # then they are kept for a while, like those of a worker that is killed here
            await store.call("remove_settled", store.backend.remove_settled(removed))
    return done


def unreleased(release: Release) -> Settlement:
    """The settlement of an interrupted attempt whose handler had settled its job itself and whose lease is over. If
    that transaction was not committed, another worker has the job, and this changes nothing."""
    return Settlement(id=release.id, token=release.token, ending=Ending.SNOOZED)


def refused(one: Settlement, error: HoldfastError) -> Settlement:
    """The settlement of an attempt whose jobs the store refuses: the job is buried with the reason."""
    text = bounded(f"the jobs it enqueued could not be stored: {error_text(error)}", TEXT_CHARS_MAX)
    failure = Failure(reason="refused", type=dotted(error), text=text)
    return Settlement(
        id=one.id, token=one.token, ending=Ending.BURIED, failed=True, failure=failure, reason="refused", ran=one.ran
    )


class ExchangeWithJobs:
    """An exchange in which some settlements have jobs to store. It is repeated until the store has replied."""

    def __init__(self, backend: Backend, runners: Runners, doubtful: set[str]) -> None:
        self._backend, self._runners = backend, runners
        self._doubtful = doubtful  # tokens of settlements that a call without a reply may have applied
        self._answered: dict[str, Answer] = {}  # by token, until the whole exchange has a reply

    async def exchange(
        self, settlements: list[Settlement], releases: Sequence[Release], request: ClaimRequest
    ) -> Exchanged:
        """Store the settlements with jobs, then exchange. A refused one is replaced in the list by one that buries."""
        await asyncio.gather(
            *(
                self._settle(settlements, place, one)
                for place, one in enumerate(settlements)
                if isinstance(one, SettlementWithJobs) and one.token not in self._answered
            )
        )
        rest = [one for one in settlements if not isinstance(one, SettlementWithJobs)]
        answer = await self._backend.exchange(rest, releases, request)
        others = iter(answer.answers)
        answers = [
            self._answered.pop(one.token) if isinstance(one, SettlementWithJobs) else next(others, Answer.UNHEARD)
            for one in settlements
        ]
        return replace(answer, answers=(*answers, *others))

    async def _settle(self, settlements: list[Settlement], place: int, one: SettlementWithJobs) -> None:
        doubtful = one.token in self._doubtful
        self._doubtful.add(one.token)  # until there is a reply
        answer = await settle_with(one, self._backend)
        if not doubtful:
            self._doubtful.discard(one.token)
        if not isinstance(answer, Answer):
            settlements[place] = refused(one, answer)
            return
        self._answered[one.token] = answer
        if answer is Answer.OK and self._runners.wanted("enqueued"):
            self._tell(one)

    def _tell(self, one: SettlementWithJobs) -> None:
        """Emit `enqueued` for jobs that are certainly new: one with a key may be a duplicate."""
        fresh = [job for job in one.jobs if job.key is None]
        self._runners.emit(
            *(events.Enqueued(job_id=job.id, task=job.task, queue=job.queue, group=job.group) for job in fresh)
        )
