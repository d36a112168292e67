"""Work on a table of 2 GiB needs memory for the batch, never for the table.

Peaks are those the kernel counts for a process of its own (VmHWM), reset before each call. The
batch has 65,536 bags of 8 ids over rows of 256 bytes: 4 MiB of ids, 16 MiB of activations, as much
of gradients. What the caller holds already, ids and gradients, is not in what is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import shardcore as sc
from shardcore.memory import pool

_CLEAR = "/proc/self/clear_refs"

needs_linux = pytest.mark.skipif(
    not os.access(_CLEAR, os.W_OK), reason="needs Linux's /proc/self/clear_refs"
)

_PROGRAM = """
import sys
import numpy as np
import shardcore as sc

ROWS, DIM, BAGS, PER_BAG, HOT = 1 << 23, 64, 1 << 16, 8, 1 << 16
rng = np.random.default_rng(0)
# A thousandth of every quarter of the table is in use; the rest of its pages is never written.
ids = rng.integers(0, 4, (BAGS, PER_BAG)) * (ROWS // 4) + rng.integers(0, HOT // 4, (BAGS, PER_BAG))
every_hot_row = (np.arange(4)[:, None] * (ROWS // 4) + np.arange(HOT // 4)).reshape(-1, PER_BAG)
sc.set_num_threads(2)


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def added(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmRSS")
    result = call()
    print(status("VmHWM") - before)
    return result


def engine(backend, options):
    table = sc.TableConfig(ROWS, DIM, initializer=sc.initializers.Zeros())
    e = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(1.0), backend, options)
    e.build()
    gradients = np.ones((BAGS, DIM), np.float32)
    e.enqueue(every_hot_row)
    e.apply_gradients(e.dequeue())
    added(lambda: e(ids))
    added(lambda: (e.enqueue(ids), e.dequeue(), e.apply_gradients(gradients)))
    assert e.step == 2
    if backend == "cpu":
        added(lambda: e.tables["table_0"][: ROWS // 4])


def variable():
    shards = [np.zeros((ROWS // 4, DIM), np.float32) for _ in range(4)]
    v = sc.ShardedVariable(shards)
    values = np.ones((BAGS * PER_BAG, DIM), np.float32)
    v.scatter_add(every_hot_row.reshape(-1), values[:HOT])
    sc.embedding_lookup_sparse(v, ids[:10])
    added(lambda: sc.embedding_lookup_sparse(v, ids))
    added(lambda: v.scatter_add(ids.reshape(-1), values))


if sys.argv[1] == "variable":
    variable()
else:
    engine(sys.argv[1], {"hosts": 4} if sys.argv[1] == "sim" else None)
"""

MIB = 1 << 20
IDS, ACTIVATIONS, GRADIENTS, VALUES = 4 * MIB, 16 * MIB, 16 * MIB, 128 * MIB
HOT = 16 * MIB  # all rows that any id names
SORTED = 18 * MIB  # all that the sort of 524,288 ids takes, were none of it used again
SLACK = 2 * MIB  # what threads and Python keep


def peaks(which):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, which], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@needs_linux
def test_embedded_backend():
    lookup, step, quarter = peaks("cpu")  # measured: 20, 34 and 512 MiB
    # Ids are copied while they are checked, for the caller may write to his at any time.
    assert ACTIVATIONS <= lookup < ACTIVATIONS + IDS + SLACK
    # Gradients are divided by the sizes of bags: one array of each, no second one. Ids and
    # activations lie where those of the lookup lay.
    assert step < SORTED + GRADIENTS + SLACK
    assert quarter >= 512 * MIB  # what is measured shows a copy of a part of the table


@needs_linux
def test_simulated_hosts():
    lookup, step = peaks("sim")  # measured: 75 and 104 MiB
    received = 4 * HOT  # each of the 4 hosts gets the rows its bags name
    assert ACTIVATIONS <= lookup < received + 2 * (IDS + ACTIVATIONS)
    assert step < received + 4 * (IDS + ACTIVATIONS + GRADIENTS)


@needs_linux
def test_variables():
    lookup, scatter = peaks("variable")  # measured: 18 and 23 MiB
    assert ACTIVATIONS <= lookup < 2 * (IDS + ACTIVATIONS)
    assert scatter < IDS + VALUES


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_update_holds_no_second_copy_of_the_gradients(combiner, weighted, dtype, monkeypatch):
    """By the bytes that NumPy asks for, counted: no allocator blurs them.

    Gradients that come in the working dtype are tested and used where they are. Divided by the
    sizes of their bags they are an array more, as those of another dtype are; with weights the
    occurrences are multiplied as they are summed.
    """
    monkeypatch.setattr(pool, "_MOST", 0)  # what is used again would be counted once at most
    bags, dim = 1 << 14, 64
    table = sc.TableConfig(1 << 12, dim, combiner=combiner, dtype=dtype)
    e = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(1.0))
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 1 << 12, (bags, 8))
    weights = rng.random((bags, 8)).astype(dtype) if weighted else None
    gradients = np.ones((bags, dim), dtype)
    divided = combiner != "sum" and not weighted

    def peak_of_an_update(given):
        e.enqueue(ids, weights)
        e.dequeue()
        tracemalloc.start()
        e.apply_gradients(given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peaks = [peak_of_an_update(gradients) for _ in range(2)]
    assert min(peaks) < gradients.nbytes * divided + gradients.nbytes // 8
    converted = peak_of_an_update(gradients.astype("float16"))
    assert converted > gradients.nbytes * (1 + divided)  # they are counted
