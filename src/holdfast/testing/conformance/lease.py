"""Conformance of what a worker does while it holds a lease: begin, renew, report, release, retire.

Called by run_case. Stale tokens have a file of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

from msgspec.structs import replace

from ...lifecycle import Ending, State
from ...records import LOGS_KEPT_MAX, Answer, Held, Lease, Release, Report, WorkerRecord
from ...worker_status import PORTRAIT_BYTES_MAX
from .compare import CALLED, row_of, same, same_tables
from .registry import case, case_for_each
from .world import FOREVER, NO_TOKEN, World

# ---------------------------------------------------------------------- begin


@case
async def begin_marks_the_lease_and_may_be_repeated(world: World) -> None:
    start = await world.put(State.RUNNING)
    same(await world.begin(start.held), Answer.OK, "begin")
    same((await world.get(start.id)).begun, True, "begun")
    async with world.unchanged("a repeated begin"):
        same(await world.begin(start.held), Answer.OK, "begin again")


@case_for_each(["release", "retry", "recover"])
async def a_new_lease_has_not_begun(world: World, way: str) -> None:
    job_id = await world.enqueue()
    lease = await world.claim_one(job_id)
    await world.begin(lease)
    if way == "release":
        await world.give_back(lease)
    elif way == "retry":
        await world.end(lease, Ending.RETRY, delay=0.0)
    else:
        await world.expire_worker()
    await world.claim_one(job_id, "w2")
    same((await world.get(job_id)).begun, False, f"begun of the lease after {way}")


@case
async def begin_after_a_cancel_is_refused(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.backend.cancel(start.id, now=world.now)
    async with world.unchanged("begin of a job whose cancel was asked for"):
        same(await world.begin(start.held), Answer.CANCELLED, "begin")


@case
async def begin_answers_each_lease_on_its_own(world: World) -> None:
    one, two = await world.leased(2)
    named = [Held(one.id, NO_TOKEN), Held(two.id, two.token), Held("nobody", NO_TOKEN)]
    answers = await world.backend.begin(named, now=world.now)
    same(answers, [Answer.LOST, Answer.OK, Answer.LOST], "answers")
    same([(await world.get(lease.id)).begun for lease in (one, two)], [False, True], "begun")


# ---------------------------------------------------------------------- renew


@case
async def renew_moves_the_workers_deadline_and_nothing_else(world: World) -> None:
    ids = await world.enqueue_many(3)
    leases = await world.claim(3)
    for _ in range(4):
        world.advance(15.0)
        async with world.unchanged("renew", besides={"workers": ("deadline", "renewed_at")}):
            renewal = await world.renew("w1", leases)
        same((renewal.known, renewal.lost, renewal.cancelled, renewal.released), (True, (), (), ()), "answer")
        same(await world.backend.recover(now=world.now), [], "nothing has stalled")
    same(await world.states(ids), [State.RUNNING] * 3, "all still run")
    world.advance(31.0)
    same(len(await world.backend.recover(now=world.now)), 3, "leases that stalled after the last renewal")


@case
async def registering_again_renews_too(world: World) -> None:
    start = await world.put(State.RUNNING)
    world.advance(20.0)
    await world.register("holder")
    world.advance(20.0)
    same(await world.backend.recover(now=world.now), [], "nothing has stalled")
    await world.is_in(start.id, State.RUNNING)


@case
async def registering_again_renews_by_the_lease_it_named_first(world: World) -> None:
    await world.register("w1", lease=30.0)
    await world.register("w1", lease=5.0)
    world.advance(29.0)
    same([one.expired for one in await world.backend.workers(now=world.now)], [False], "expired")


@case
async def renew_is_accepted_after_the_deadline_while_nobody_recovered(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.expire_worker("holder")
    renewal = await world.renew("holder", [start.held])
    same((renewal.known, renewal.lost), (True, ()), "a late renewal")
    same(await world.backend.recover(now=world.now), [], "nothing has stalled")
    await world.end(start.held)


@case
async def renew_of_an_unknown_worker_changes_nothing(world: World) -> None:
    start = await world.put(State.RUNNING)
    async with world.unchanged("renew of a stranger"):
        renewal = await world.renew("stranger", [start.held], seen_call=5)
    same(renewal.known, False, "known")


@case
async def renew_names_what_was_lost_and_what_was_cancelled(world: World) -> None:
    lost, cancelled, fine = await world.leased(3)
    await world.give_back(lost)
    await world.backend.cancel(cancelled.id, now=world.now)
    renewal = await world.renew("w1", [lost, cancelled, fine])
    same((renewal.lost, renewal.cancelled, renewal.released), ((lost.id,), (cancelled.id,), ()), "answer")
    await world.is_in(cancelled.id, State.RUNNING)


@case
async def renew_gives_back_what_is_not_named_and_counts_nothing(world: World) -> None:
    kept, dropped = await world.leased(2)
    await world.begin(dropped)
    renewal = await world.renew("w1", [kept])
    same((renewal.released, renewal.lost), ((dropped.id,), ()), "answer")
    await world.is_in(dropped.id, State.READY)
    await world.counters(dropped.id, 0, 0, 0)
    same(await world.settle(dropped), Answer.LOST, "its token is void")
    await world.is_in(kept.id, State.RUNNING)
    await world.claim_one(dropped.id, "w2")


@case
async def renew_spares_the_leases_of_a_claim_whose_answer_is_on_its_way(world: World) -> None:
    await world.enqueue_many(3)
    [early] = await world.claim(1)
    [late] = await world.claim(1)
    renewal = await world.renew("w1", [early], seen_call=world.last_call("w1") - 1)
    same(renewal.released, (), "given back")
    same(await world.states([early.id, late.id]), [State.RUNNING] * 2, "both still leased")
    renewal = await world.renew("w1", [early])
    same(renewal.released, (late.id,), "given back once the answer was seen")


@case
async def naming_an_old_token_does_not_name_the_new_lease(world: World) -> None:
    """The worker holds a job's earlier token; the claim that leased it anew got lost on the way."""
    job_id = await world.enqueue()
    old = await world.claim_one(job_id)
    await world.give_back(old)
    await world.claim_one(job_id)
    renewal = await world.renew("w1", [old])
    same((renewal.lost, renewal.released), ((job_id,), (job_id,)), "the old is lost, the new given back")
    await world.is_in(job_id, State.READY)
    await world.counters(job_id, 0, 0, 0)


@case
async def renew_touches_no_other_workers_leases(world: World) -> None:
    await world.enqueue_many(2)
    mine = await world.claim_one(worker="w1")
    other = await world.claim_one(worker="w2")
    renewal = await world.renew("w1", [mine, other])
    same((renewal.lost, renewal.released), ((other.id,), ()), "answer")
    await world.is_in(other.id, State.RUNNING)
    async with world.unchanged("renew", besides=CALLED):
        await world.renew("w2", [other])


@case
async def giving_back_a_cancelled_lease_by_renew_ends_it_cancelled(world: World) -> None:
    start = await world.put(State.RUNNING, group="g")
    behind = await world.enqueue(group="g")
    await world.backend.cancel(start.id, now=world.now)
    same((await world.renew("holder", [])).released, (start.id,), "given back")
    same(await world.states([start.id, behind]), [State.CANCELLED, State.READY], "states")


# ---------------------------------------------------------------------- report


@case
async def report_stores_progress_and_lines(world: World) -> None:
    start = await world.put(State.RUNNING)
    same(await world.report(start.held, progress=0.5, text="half", lines=("a", "b")), Answer.OK, "report")
    first_at = world.now
    world.advance(1.0)
    same(await world.report(start.held, lines=("c",)), Answer.OK, "report of lines only")
    job = await world.get(start.id)
    same((job.progress, job.progress_text), (0.5, "half"), "progress stays until the next one is told")
    lines = await world.backend.logs(start.id)
    same([line.text for line in lines], ["a", "b", "c"], "log lines, oldest first")
    same([line.at for line in lines], [first_at, first_at, world.now], "their times")


@case
async def report_keeps_only_the_newest_lines(world: World) -> None:
    start = await world.put(State.RUNNING)
    total = LOGS_KEPT_MAX + 70
    for first in range(0, total, 30):
        lines = tuple(f"line {n}" for n in range(first, min(first + 30, total)))
        await world.report(start.held, lines=lines)
    kept = [line.text for line in await world.backend.logs(start.id)]
    same(kept, [f"line {n}" for n in range(70, total)], "lines kept")
    many = tuple(f"flood {n}" for n in range(LOGS_KEPT_MAX * 3))
    await world.report(start.held, lines=many)
    kept = [line.text for line in await world.backend.logs(start.id)]
    same(kept, list(many[-LOGS_KEPT_MAX:]), "lines kept of one flood")


@case
async def report_is_accepted_after_a_cancel_was_asked_for(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.backend.cancel(start.id, now=world.now)
    same(await world.report(start.held, progress=0.9), Answer.OK, "report")
    same((await world.get(start.id)).progress, 0.9, "progress")


@case
async def report_answers_each_job_on_its_own(world: World) -> None:
    one, two = await world.leased(2)
    reports = [
        Report(id=one.id, token=two.token, progress=0.1, lines=("stray",)),
        Report(id=two.id, token=two.token, progress=0.2),
    ]
    same(await world.backend.report(reports, now=world.now), [Answer.LOST, Answer.OK], "answers")
    same([(await world.get(lease.id)).progress for lease in (one, two)], [None, 0.2], "progress")
    same(await world.backend.logs(one.id), [], "log of the job that was not ours")


# ---------------------------------------------------------------------- release and retire


@case
async def giving_back_a_hundred_times_burns_nothing(world: World) -> None:
    job_id = await world.enqueue(max_stalls=0)
    for _ in range(100):
        await world.give_back(await world.claim_one(job_id, lease=FOREVER))
    await world.counters(job_id, 0, 0, 0)
    job = await world.get(job_id)
    same((job.state, job.errors, job.worker), (State.READY, (), None), "the job")
    same((await world.claim_one(job_id)).attempt, 1, "the next attempt is still the first")


@case
async def giving_back_with_a_delay_burns_nothing_and_comes_later(world: World) -> None:
    job_id = await world.enqueue()
    for _ in range(20):
        await world.give_back(await world.claim_one(job_id, lease=FOREVER), delay=15.0)
        job = await world.get(job_id)
        same((job.state, job.due_at), (State.SCHEDULED, world.now + 15.0), "the job until it is due again")
        await world.claim_none()
        world.advance(15.5)
    await world.counters(job_id, 0, 0, 0)
    await world.claim_one(job_id)


@case
async def a_released_job_keeps_its_turn(world: World) -> None:
    first, second = await world.enqueue_many(2)
    turn = (await world.row(first))["turn"]
    await world.give_back(await world.claim_one(first))
    same((await world.row(first))["turn"], turn, "turn after release")
    same(await world.claim_ids(2), [first, second], "order after release")


@case
async def a_job_released_with_a_delay_gets_a_new_turn(world: World) -> None:
    first, second = await world.enqueue_many(2)
    await world.give_back(await world.claim_one(first, lease=FOREVER), delay=5.0)
    world.advance(6.0)
    same(await world.claim_ids(2), [second, first], "order after a delayed release")


@case
async def release_of_a_cancelled_job_ends_it(world: World) -> None:
    for delay in (0.0, 60.0):
        start = await world.put(State.RUNNING, worker=f"holder-{delay}")
        await world.backend.cancel(start.id, now=world.now)
        same(await world.release(start.held, delay), Answer.OK, "release")
        await world.is_in(start.id, State.CANCELLED)
        await world.counters(start.id, 0, 0, 0)
        same((await world.get(start.id)).finished_at, world.now, "finished_at")


@case
async def release_answers_each_lease_on_its_own(world: World) -> None:
    one, two = await world.leased(2)
    releases = [Release(id=one.id, token=two.token), Release(id=two.id, token=two.token)]
    same(await world.backend.release(releases, now=world.now), [Answer.LOST, Answer.OK], "answers")
    same(await world.states([one.id, two.id]), [State.RUNNING, State.READY], "states")


@case
async def retire_gives_everything_back_and_removes_the_worker(world: World) -> None:
    one, two = await world.leased(2, max_stalls=0)
    grouped = await world.enqueue(group="g")
    lease = await world.claim_one(grouped)
    await world.begin(one)
    before = await world.tables()
    same(await world.backend.retire("w1", now=world.now), 3, "leases given back")
    same(await world.states([one.id, two.id, grouped]), [State.READY] * 3, "states")
    for job_id in (one.id, two.id, grouped):
        await world.counters(job_id, 0, 0, 0)
    after = await world.tables()
    same((row_of(before, "workers", "w1") is None, row_of(after, "workers", "w1")), (False, None), "its row")
    for stale in (one, two, lease):
        same(await world.settle(stale), Answer.LOST, "settle after retire")
    same((await world.renew("w1", [one])).known, False, "renew after retire")


@case
async def retire_ends_a_job_whose_cancel_was_asked_for(world: World) -> None:
    start = await world.put(State.RUNNING)
    await world.backend.cancel(start.id, now=world.now)
    await world.backend.retire("holder", now=world.now)
    await world.is_in(start.id, State.CANCELLED)


@case
async def retire_of_an_unknown_worker_does_nothing(world: World) -> None:
    await world.put(State.RUNNING)
    before = await world.tables()
    same(await world.backend.retire("stranger", now=world.now), 0, "leases given back")
    same_tables(before, await world.tables(), "retire of a stranger")


@case
async def a_portrait_comes_with_a_renewal_and_stays_until_another_comes(world: World) -> None:
    drawn = b'{"runners":[{"pid":1}],"name":"\xc3\xa4\\u0000"}'
    await world.register("w1")
    same(await _portrait(world), None, "before any was shown")
    async with world.unchanged("renew", besides={"workers": ("deadline", "renewed_at", "portrait")}):
        await world.renew("w1", portrait=drawn)
    same(await _portrait(world), drawn, "as it was shown")
    async with world.unchanged("what shows nothing new", besides=CALLED):
        await world.renew("w1")
        await world.register("w1")
        await world.backend.claim(world.request("w1"), now=world.now)
    same(await _portrait(world), drawn, "still there")
    await world.renew("w1", portrait=b"{}")
    same(await _portrait(world), b"{}", "the newer one")


@case
async def a_portrait_that_is_too_long_costs_no_renewal_and_is_not_kept(world: World) -> None:
    await world.register("w1")
    largest = b'"%s"' % (b"x" * (PORTRAIT_BYTES_MAX - 2))
    await world.renew("w1", portrait=largest)
    world.advance(20.0)
    async with world.unchanged("renew", besides={"workers": ("deadline", "renewed_at")}):
        same((await world.renew("w1", portrait=largest + b" ")).known, True, "the renewal")
    world.advance(20.0)
    same([(one.expired, one.portrait) for one in await world.backend.workers(now=world.now)], [(False, largest)], "row")


@case_for_each(["retire", "recover"])
async def a_portrait_goes_with_its_workers_row(world: World, way: str) -> None:
    for worker in ("w1", "w2"):
        await world.register(worker)
        await world.renew(worker, portrait=worker.encode())
    if way == "retire":
        await world.backend.retire("w1", now=world.now)
    else:
        await world.backend.recover(dead=["w1"], now=world.now)
    same((await world.renew("w1", portrait=b"late")).known, False, "a renewal of the worker that is gone")
    await world.register("w1")
    found = {one.id: one.portrait for one in await world.backend.workers(now=world.now)}
    same(found, {"w1": None, "w2": b"w2"}, "portraits")


@case
async def registering_again_takes_over_queues_and_slots_and_nothing_else(world: World) -> None:
    first = WorkerRecord(id="w1", host="host", pid=1, lease_seconds=30.0, queues=("a", "b"), slots=3)
    await world.backend.register(first, now=world.now)
    again = WorkerRecord(id="w1", host="x", pid=2, lease_seconds=5.0, queues=("ü",), slots=8, isolates=True)
    world.advance(10.0)
    await world.backend.register(again, now=world.now)
    [found] = await world.backend.workers(now=world.now)
    told = replace(first, queues=("ü",), slots=8)
    same(replace(found, started_at=0.0, renewed_at=0.0), told, "the row")
    same((found.started_at, found.renewed_at), (world.now - 10.0, world.now), "its times")
    await world.backend.register(replace(again, queues=()), now=world.now)
    same((await world.backend.workers(now=world.now))[0].queues, (), "no queues")


async def _portrait(world: World) -> bytes | None:
    [worker] = await world.backend.workers(now=world.now)
    return worker.portrait


# ----------------------------------------------------------------------------------------------------------------------
# Fencing: a call that names a token which is no longer the current one changes nothing at all.


Named = Lease | Held
Step = Callable[[World, Named], Awaitable[object]]


async def _reclaimed(world: World, lease: Named) -> None:
    await world.give_back(lease)
    await world.claim_one(lease.id, "w2", lease=FOREVER)


async def _reclaimed_by_itself(world: World, lease: Named) -> None:
    await world.give_back(lease)
    await world.claim_one(lease.id)


async def _recovered(world: World, lease: Named) -> None:
    await world.expire_worker()
    same([r.id for r in await world.backend.recover(now=world.now)], [lease.id], "recovered")


async def _recovered_by_claim(world: World, lease: Named) -> None:
    await world.expire_worker()
    await world.claim_one(lease.id, "w2", lease=FOREVER)


async def _unnamed(world: World, lease: Named) -> None:
    same((await world.renew("w1", [])).released, (lease.id,), "given back")


async def _retired(world: World, lease: Named) -> None:
    await world.backend.retire("w1", now=world.now)


def _settled(ending: Ending) -> Step:
    async def end(world: World, lease: Named) -> None:
        await world.end(lease, ending)

    return end


def _released(delay: float) -> Step:
    async def end(world: World, lease: Named) -> None:
        await world.give_back(lease, delay)

    return end


ENDED: dict[str, Step] = {
    "released": _released(0.0),
    "released for later": _released(60.0),
    "reclaimed by another": _reclaimed,
    "reclaimed by the same worker": _reclaimed_by_itself,
    "recovered": _recovered,
    "recovered by a claim": _recovered_by_claim,
    "given back by renew": _unnamed,
    "retired": _retired,
    **{f"settled {ending}": _settled(ending) for ending in Ending},
}


async def _late_begin(world: World, lease: Named) -> None:
    same(await world.begin(lease), Answer.LOST, "begin")


async def _late_report(world: World, lease: Named) -> None:
    answer = await world.report(lease, progress=0.7, text="late", lines=("late",))
    same(answer, Answer.LOST, "report")


async def _late_release(world: World, lease: Named) -> None:
    same(await world.release(lease), Answer.LOST, "release")
    same(await world.release(lease, 60.0), Answer.LOST, "release for later")


async def _late_exchange(world: World, lease: Named) -> None:
    answer = await world.exchange(
        [world.settlement(lease, Ending.SUCCEEDED)], [Release(id=lease.id, token=lease.token)], None
    )
    same(answer.answers, (Answer.LOST, Answer.LOST), "exchange")


def _late_settle(ending: Ending) -> Step:
    async def settle(world: World, lease: Named) -> None:
        same(await world.settle(lease, ending, value=b'"late"'), Answer.LOST, f"settle {ending}")

    return settle


LATE: dict[str, Step] = {
    "begin": _late_begin,
    "report": _late_report,
    "release": _late_release,
    "exchange": _late_exchange,
    **{f"settle {ending}": _late_settle(ending) for ending in Ending},
}


async def _ended(world: World, ended: str) -> Lease:
    job_id = await world.enqueue(group="g", key="k")
    lease = await world.claim_one(job_id)
    await ENDED[ended](world, lease)
    return lease


@case_for_each(product(ENDED, LATE), name=lambda p: f"{p[1]} after it was {p[0]}")
async def a_stale_token_changes_nothing(world: World, param: tuple[str, str]) -> None:
    ended, late = param
    lease = await _ended(world, ended)
    async with world.unchanged(f"{late} under a lease that was {ended}"):
        await LATE[late](world, lease)


@case_for_each(ENDED)
async def renew_naming_a_stale_token_moves_only_the_deadline(world: World, ended: str) -> None:
    lease = await _ended(world, ended)
    await world.register("w3")
    for worker in ("w1", "w3"):
        async with world.unchanged(f"renew naming a lease that was {ended}", besides=CALLED):
            # seen_call 0: nothing this worker was handed since is given back, so only the naming is judged.
            renewal = await world.renew(worker, [lease], seen_call=0)
        assert not renewal.known or renewal.lost == (lease.id,), f"the stale lease must be told lost, got {renewal}"


@case_for_each(["recovered", "recovered by a claim", "retired"])
async def a_late_renew_of_a_worker_that_is_gone_answers_unknown(world: World, ended: str) -> None:
    lease = await _ended(world, ended)
    async with world.unchanged("a late renew"):
        same((await world.renew("w1", [lease])).known, False, "known")


@case_for_each(["recovered", "recovered by a claim", "retired"])
async def a_late_exchange_of_a_worker_that_is_gone_changes_nothing(world: World, ended: str) -> None:
    lease = await _ended(world, ended)
    await world.enqueue()
    async with world.unchanged("a late settle and claim"):
        answer = await world.exchange([world.settlement(lease, Ending.SUCCEEDED)], [], world.request(most=5))
    same((answer.known, answer.answers, answer.leases), (False, (Answer.LOST,), ()), "answer")


@case_for_each(LATE)
async def a_token_of_another_job_is_worth_nothing(world: World, late: str) -> None:
    one, two = await world.leased(2)
    crossed = Held(one.id, two.token)
    async with world.unchanged(f"{late} with another job's token"):
        await LATE[late](world, crossed)


@case_for_each(LATE)
async def a_job_that_does_not_exist_is_lost(world: World, late: str) -> None:
    await world.put(State.RUNNING)
    nobody = Held("nobody", NO_TOKEN)
    async with world.unchanged(f"{late} of a job that does not exist"):
        await LATE[late](world, nobody)


@case
async def an_empty_token_matches_no_job(world: World) -> None:
    """Jobs without a lease have no token: none at all must not equal an empty one."""
    ids = [await world.enqueue(), await world.enqueue(delay=60.0)]
    async with world.unchanged("calls with an empty token"):
        for job_id in ids:
            blank = Held(job_id, "")
            for late in LATE.values():
                await late(world, blank)
