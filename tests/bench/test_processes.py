"""Processor time of a tree of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from bench.processes import end, machine_seconds, memory_bytes, processor_seconds, tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")

BURN = "import time\nwhile time.process_time() < {}: pass\n"


def test_a_child_counts_while_it_lives_and_after_it_ended() -> None:
    words = "print(1, flush=True); import sys; sys.stdin.read()"
    before = processor_seconds(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", BURN.format(0.2) + words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in tree(os.getpid())
        living = processor_seconds(os.getpid()) - before
        assert processor_seconds(child.pid) >= 0.2
    ended = processor_seconds(os.getpid()) - before
    assert living >= 0.2
    assert ended >= 0.19  # to the tick
    assert child.pid not in tree(os.getpid())


def test_the_machine_did_at_least_what_we_did() -> None:
    before, mine = machine_seconds(), processor_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BURN.format(0.2)], check=True)
    assert machine_seconds() - before >= (processor_seconds(os.getpid()) - mine) / 2 > 0.05


def test_memory_is_that_of_the_tree_and_a_polite_one_ends_at_once() -> None:
    words = "print(1, flush=True); import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert memory_bytes(child.pid) > 2**18
        end(child)
        assert child.returncode == -signal.SIGTERM
