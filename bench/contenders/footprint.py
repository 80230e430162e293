"""The smallest app: shows the fixed cost of `holdfast work` and of a program with one enqueue.

As a program it enqueues one job and prints how long that took from its first line, imports included, in ms: elapsed
time and processor time. FOOTPRINT_URL names the store, FOOTPRINT_MARK the file in which the handler notes its end.
"""

import time

began = time.perf_counter(), time.process_time()

import os

from holdfast import Holdfast

app = Holdfast(os.environ["FOOTPRINT_URL"])


@app.task(name="mark")
def mark() -> None:
    with open(os.environ["FOOTPRINT_MARK"], "w") as file:
        file.write(str(time.monotonic()))


if __name__ == "__main__":
    mark.enqueue()
    print((time.perf_counter() - began[0]) * 1000, (time.process_time() - began[1]) * 1000)
