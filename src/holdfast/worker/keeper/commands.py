"""Carries out the commands that operators send this worker through the store: pause, resume, slots, stacks, stop.

Commands arrive in the replies to renewals, repeated until they are answered; each is carried out once. Everything
happens on the keeper's loop, in the background: a command never delays a renewal or an exchange.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ... import events, logs
from ...context import bounded
from ...errors import HoldfastError
from ...worker_status import COMMAND_RESULT_CHARS_MAX, COMMANDS_KEPT_MAX, Command
from .lease_renewal import Ledger
from .runners import Runners, Signals
from .store_client import StoreClient

STACKS_WITHIN_SECONDS = 10.0


class Refused(Exception):
    """This worker refuses a command; the text says why."""


class Commands:
    """Carries out each command once and stores its result."""

    def __init__(
        self,
        store: StoreClient,
        runners: Runners,
        signals: Signals,
        ledger: Ledger,
        slots_max: int,
        *,
        set_slots: Callable[[int], None],
        stop: Callable[[], None],
    ) -> None:
        self._store, self._runners, self._signals, self._ledger = store, runners, signals, ledger
        self._slots_max = slots_max
        self._set_slots, self._stop = set_slots, stop
        self._taken: dict[str, tuple[str, bool] | None] = {}  # by id: None while it is carried out, then its answer
        self._tasks: set[asyncio.Task[None]] = set()

    def change_slots(self, most: int) -> None:
        """Reloaded code has a different default: use all of these slots, unless an operator chose fewer."""
        if most != self._slots_max:
            slots = most if self._ledger.slots == self._slots_max else min(self._ledger.slots, most)
            self._slots_max = most
            self._use(slots)

    def obey(self, worker: str, commands: Sequence[Command]) -> None:
        """Carry out new commands; store the result again of those whose result was not stored."""
        for command in commands:
            if command.id not in self._taken:
                self._taken[command.id] = None
                self._spawn(worker, command)
            elif self._taken[command.id] is not None:
                self._spawn(worker, command)
        while len(self._taken) > 2 * COMMANDS_KEPT_MAX:  # the store keeps fewer: older ones do not come back
            del self._taken[next(iter(self._taken))]

    def _spawn(self, worker: str, command: Command) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(worker, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, worker: str, command: Command) -> None:
        known = self._taken.get(command.id)
        if known is None:
            try:
                known = await self._do(command), False
            except Refused as refusal:
                known = str(refusal), True
            self._taken[command.id] = known
            logs.worker_commanded(worker, command.ask, command.by, known[0] if command.ask != "stacks" else "shown")
        result, refused = known
        answer = self._store.backend.answer(worker, command.id, result, refused=refused)
        try:
            await self._store.call("answer", answer)
        except HoldfastError as error:
            logs.command_unanswered(worker, command.ask, error)  # it comes again with the next renewal
        if command.ask == "stop":
            self._stop()

    async def _do(self, command: Command) -> str:
        if command.ask == "pause":
            return self._pause(command.by, paused=True)
        if command.ask == "resume":
            return self._pause(command.by, paused=False)
        if command.ask == "slots":
            return self._resize(command.value or 0)
        if command.ask == "stacks":
            return await self._stacks()
        return f"stopping: {len(self._ledger.busy)} running"

    def _pause(self, by: str, *, paused: bool) -> str:
        if self._signals.paused != paused:
            self._signals.paused = paused
            self._signals.status_changed.set()
            kind = events.WorkerPaused if paused else events.WorkerResumed
            self._runners.emit(kind(worker=self._runners.worker, by=by))
            self._signals.claim_again()
        return f"paused: {len(self._ledger.busy)} running" if paused else "resumed"

    def _resize(self, slots: int) -> str:
        if not 1 <= slots <= self._slots_max:
            raise Refused(f"it was started with {self._slots_max} slots and can use 1 to {self._slots_max} of them.")
        self._use(slots)
        return f"{slots} slots"

    def _use(self, slots: int) -> None:
        self._ledger.slots = slots
        self._set_slots(slots)
        self._signals.claim_again()

    async def _stacks(self) -> str:
        try:
            async with asyncio.timeout(STACKS_WITHIN_SECONDS):
                found = await self._runners.stacks()
        except TimeoutError:
            raise Refused(f"its runners did not show their stacks within {STACKS_WITHIN_SECONDS:g} s.") from None
        return bounded("\n\n".join(f"{name}\n{stack}" for name, stack in found), COMMAND_RESULT_CHARS_MAX)
