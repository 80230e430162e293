"""Where a worker's log sentences go when the program has not decided: to stderr, one short line each.

Used by `holdfast work` and by the runner's program. Changes no logging the user's code has set up.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def logs_on_stderr(verbose: bool) -> Iterator[None]:
    """While inside, our sentences go to stderr, unless the program already decided where logs go."""
    logger = logging.getLogger("holdfast")
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
