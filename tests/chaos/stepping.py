"""A worker whose handler does its work in steps, and kills its own process at one point of its way."""

from __future__ import annotations

import os
import signal

from holdfast import Context, Holdfast

STEPS = ("charge", "pack", "ship")
POINTS = 3 * len(STEPS)  # before, in and after each step


def work(url: str, journal: str, dies_at: int) -> None:
    """Run what is due; SIGKILL at that point of the handler, if a job comes to it."""
    passed = 0

    def point() -> None:
        nonlocal passed
        if passed == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    def effect(job_id: str, name: str) -> str:
        with open(journal, "a", encoding="utf-8") as lines:
            lines.write(f"{job_id} {name}\n")
        point()  # the effect is there, its result is not stored
        return f"{name} done"

    with Holdfast(url) as app:

        @app.task(name="order", max_stalls=1000)
        def order(ctx: Context) -> list[str]:
            done: list[str] = []
            for name in STEPS:
                point()
                done.append(ctx.step(name, effect, ctx.id, name))
                point()
            return done

        app.work(drain=True, slots=1)
