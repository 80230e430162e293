"""An app whose producers and workers run in processes of their own while the store under them is moved.

python load_app.py URL FOLDER produce NAME     enqueues one by one until the store is sealed; exit code 3 then
python load_app.py URL FOLDER work | drain     runs jobs; exit code 3 when the store is sealed
"""

from __future__ import annotations

import json
import os
import sys
import time

from holdfast import Context, Holdfast, OutcomeUnknown, StoreSealed

GROUPS = 5
SEALED = 3

url, folder, mode = sys.argv[1:4]
app = Holdfast(url)


def note(book: str, **facts: object) -> None:
    fd = os.open(f"{folder}/{book}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps(facts) + "\n").encode())
    os.close(fd)


@app.task(name="step")
def step(ctx: Context, who: str, number: int) -> int:
    note("journal", what="start", job=ctx.id, who=who, number=number, group=ctx.group, fence=ctx.fence)
    time.sleep(0.03)  # slower than the producers, so that there is always something left
    note("journal", what="end", job=ctx.id, who=who, number=number, group=ctx.group, fence=ctx.fence)
    return number


def produce(who: str) -> int:
    number = 0
    while True:
        call = step.using(group=f"{who}-{number % GROUPS}").bind(who, number)
        while True:
            try:
                app.enqueue(call)
                break
            except OutcomeUnknown:
                continue
            except StoreSealed:
                note("refused", job=call.id, who=who, number=number)
                return SEALED
        note("stored", job=call.id, who=who, number=number)
        number += 1


def main() -> int:
    if mode == "produce":
        return produce(sys.argv[4])
    try:
        app.work(drain=mode == "drain", slots=4, lease=20.0, poll_every=0.1)
    except StoreSealed:
        return SEALED
    return 0


if __name__ == "__main__":
    code = main()
    app.close()
    sys.exit(code)
