"""A saver that is killed leaves whole steps only."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from shardcore.checkpoint import Checkpoint, steps, verify

SAVER = """
import signal
import sys
import numpy as np
from shardcore.checkpoint import Checkpoint, steps
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
table = np.zeros((4000, 16), np.float32)
words = np.array(["?"] * 50, dtype="U12")
checkpoint = Checkpoint(table=table, words=words)
step = (steps(sys.argv[1]) or [-1])[-1]
print("ready", flush=True)
while True:
    step += 1
    table[:] = step
    words[:] = str(step)
    checkpoint.save(sys.argv[1], step)
"""


def check(root):
    """Return the number of whole steps; every visible step must be one."""
    table = np.zeros((4000, 16), np.float32)
    words = np.array(["?"] * 50, dtype="U12")
    found = steps(root)
    for step in found:
        path = root / f"step-{step:08d}"
        verify(path)
        assert Checkpoint(table=table, words=words).restore(path) == step
        assert (table == step).all()
        assert (words == str(step)).all()
    assert found == list(range(len(found)))
    return len(found)


def wait_for_step(root, step):
    deadline = time.monotonic() + 60
    while step not in steps(root):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_kill_at_random_moments(tmp_path, fuzz_seed):
    moments = random.Random(fuzz_seed)
    whole = torn = 0
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as saver:
            assert saver.stdout is not None
            assert saver.stdout.readline() == "ready\n"
            wait_for_step(tmp_path, whole)
            time.sleep(moments.uniform(0, 0.03))
            saver.kill()
            assert saver.wait() == -signal.SIGKILL
        whole = check(tmp_path)
        torn = sum(name.startswith(".tmp-") for name in os.listdir(tmp_path))
    assert whole >= 12
    assert torn > 0  # some were killed in the middle of a save


def test_interrupt_leaves_nothing_behind(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SAVER, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as saver:  # fmt: skip
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
        wait_for_step(tmp_path, 0)
        saver.send_signal(signal.SIGINT)
        try:
            _, errors = saver.communicate(timeout=60)
        finally:
            saver.kill()  # nothing to one that has ended
    assert "KeyboardInterrupt" in errors
    assert check(tmp_path) > 0
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")]
