"""One process of a test: ``cases.py CASE FOLDER PROCESS PROCESSES PORT``."""

import errno
import json
import os
import sys
import threading
import time
import traceback
import tracemalloc
import warnings
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from model import contents, make_engine, train
from shardcore_pjrt.backend import PjrtBackend

import shardcore as sc
from shardcore.backend.messages import TableBatch, TableUpdate
from shardcore.checkpoint.reader import OpenStep
from shardcore.errors import CorruptCheckpointError

PAUSE = 7
"""Seconds; more than the time limit that the tests set."""


def over_all_devices(array):
    """Return a host array as one of all processes, cut over their devices as far as that goes."""
    mesh = Mesh(np.array(jax.devices("cpu")), ("x",))
    spec = PartitionSpec("x") if len(array) % mesh.size == 0 else PartitionSpec()
    return jax.make_array_from_callback(
        array.shape, NamedSharding(mesh, spec), lambda index: array[index]
    )


def to_host(array):
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def trains(folder):
    """Take a checkpoint of the backend cpu, train on, and save."""
    settings = json.loads((folder / "settings.json").read_text())
    with make_engine(options=settings["options"]) as e:
        checkpoint = sc.Checkpoint(embedding=e, dense={"bias": np.arange(3.0)})
        checkpoint.restore(folder / "from-cpu")
        found = {f"restored {name}": array for name, array in contents(e).items()}
        found |= train(e, settings["steps"], over_all_devices, to_host)
        path = checkpoint.save(folder / "saved", e.step)
        assert path.is_dir()
    np.savez(folder / f"found-{jax.process_index()}.npz", **found)


def told(call):
    """Return what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing raised"


def engine(table=None, optimizer=None, backend="pjrt", **settings):
    """Return a built engine with one small table."""
    table = {"initializer": sc.initializers.RowId(), "name": "t", **(table or {})}
    config = sc.TableConfig(table.pop("rows", 20), table.pop("dim", 4), **table)
    e = sc.ShardedEmbedding(
        {"a": sc.FeatureConfig(config)}, optimizer or sc.optimizers.SGD(1.0), backend, **settings
    )
    e.build()
    return e


def refuses(folder):
    """Let processes disagree in every call, and write down what each of them is told."""
    me = jax.process_index()
    found = {}

    # What cannot be made.
    flags = os.environ.pop("XLA_FLAGS")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PjrtBackend("cpu")
    os.environ["XLA_FLAGS"] = flags
    found["no time limit"] = [str(warning.message) for warning in caught]
    found["devices of others"] = told(lambda: PjrtBackend("cpu", 1))
    found["one device"] = told(lambda: engine({"placement": "table"}))
    options = {"exchange": "gather" if me else None}
    found["options"] = told(lambda: engine(backend_options=options))
    found["settings"] = told(lambda: engine({"dim": 4 + me}))
    found["optimizer"] = told(lambda: engine(optimizer=sc.optimizers.SGD(1.0 + me)))
    values = np.full((20, 4), 1.0 + me, np.float32)
    found["initial values"] = told(lambda: engine({"initializer": values}))

    # Calls with other arguments.
    unread = engine()
    found["another size"] = told(lambda: unread({"a": [[1] * (2 - me), [3]]}))
    check = {"check_agreement": True}
    found["check"] = told(lambda: engine(backend_options=check if me else {}))
    e = engine(optimizer=sc.optimizers.SGD(lambda: rate), backend_options=check)
    rate = 1.0
    found["ids"] = told(lambda: e({"a": [[1, 2 + me], [3]]}))
    found["number of bags"] = told(lambda: e({"a": [[1]] * (4 + me)}))
    found["weights"] = told(lambda: e({"a": [[1, 2]]}, {"a": np.array([1.0, 2.0 + me])}))
    combined = engine({"combiner": "sqrtn" if me else "mean"}, backend_options=check)
    found["divisors"] = told(lambda: combined({"a": [[1, 2]]}))
    e.enqueue({"a": [[1], [2]]})
    e.dequeue()
    ones = np.ones((2, 4), np.float32)
    found["gradients"] = told(lambda: e.apply_gradients({"a": ones + me}))
    rate = 1.0 + me
    found["learning rate"] = told(lambda: e.apply_gradients({"a": ones}))
    rate = 1.0
    some = [device for device in jax.devices("cpu") if device.id % 2048 == 0]
    on_some = jax.make_array_from_callback(
        (2, 4), NamedSharding(Mesh(np.array(some), ("x",)), PartitionSpec("x")), lambda i: ones[i]
    )
    found["gradient on some devices"] = told(lambda: e.apply_gradients({"a": on_some}))
    e.apply_gradients({"a": ones})
    found["rows"] = told(lambda: e.tables["t"][me : me + 2])
    found["values"] = told(lambda: e.tables["t"].assign(np.full((20, 4), me, np.float32)))
    found["calls"] = told(lambda: e({"a": [[1]]}) if me else e.tables["t"][0])
    found["unchanged"] = e.tables["t"][:3, 0].tolist()

    own = [("own", b"")] * (1 + me)
    found["parts"] = told(lambda: e._backend.process_group.agree("a call", own))
    found["step"] = told(
        lambda: e._backend.apply([TableUpdate(TableBatch("t", ()), (), (), 1 + me)])
    )

    # Gradients that need not lie as the tables do.
    backwards = Mesh(np.array(jax.devices("cpu")[::-1]), ("other",))
    eight = np.arange(32, dtype=np.float32).reshape(8, 4)
    for name, sharding in (
        ("backwards", NamedSharding(backwards, PartitionSpec("other"))),
        ("its own", jax.local_devices()[0]),
    ):
        e.enqueue({"a": np.arange(8)})
        e.dequeue()
        if name == "its own":
            given = jax.device_put(eight, sharding)
        else:
            given = jax.make_array_from_callback((8, 4), sharding, lambda index: eight[index])
        e.apply_gradients({"a": given})
        found[name] = e.tables["t"][:8, 1].tolist()
    e.enqueue({"a": [[1], [2]]})
    e.dequeue()
    spoilt = ones.copy()
    spoilt[1, 2] = np.nan
    e.apply_gradients({"a": over_all_devices(spoilt)})
    found["not finite"] = told(lambda: e.tables["t"][0])
    found["afterwards"] = e.tables["t"][:3, 0].tolist()

    # Threads.
    errors = []
    thread = threading.Thread(
        target=lambda: errors.append(told(lambda: e({"a": [[1]]}))), name="reader"
    )
    thread.start()
    thread.join()
    found["another thread"] = errors[0]
    behind = engine(pipeline=True)
    behind.enqueue({"a": [[1], [2]]})
    found["pipeline"] = told(behind.dequeue)

    (folder / f"told-{me}.json").write_text(json.dumps(found))


@contextmanager
def instead(owner, name, value):
    """Have another attribute for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def raising(error):
    def call(*arguments, **options):
        raise error

    return call


def after_a_pause(call, seconds):
    def slow(*arguments, **options):
        nonlocal seconds
        time.sleep(seconds)
        seconds = 0
        return call(*arguments, **options)

    return slow


def fails_to_save(folder):
    """Let saves and restores fail in one process, and write down what all of them are told."""
    me = jax.process_index()
    found = {}
    e = engine()
    root = folder / "root"
    checkpoint = sc.Checkpoint(embedding=e)

    dense = {"w": np.full(3, float(me))}
    found["dense"] = told(lambda: sc.Checkpoint(embedding=e, dense=dense).save(root, 1))
    found["steps"] = told(lambda: checkpoint.save(root, 1 + me))
    other = engine(backend=PjrtBackend("cpu", jax.devices("cpu")[::-1]))
    found["devices"] = told(lambda: sc.Checkpoint(model={"e": e}, other=other).save(root, 1))
    found["calls"] = told(lambda: e({"a": [[1]]}) if me else checkpoint.save(root, 1))
    with instead(os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device"))):
        found["disk full"] = told(lambda: checkpoint.save(root, 1))
    with instead(e._backend, "gather", raising(MemoryError("none")) if me else e._backend.gather):
        found["no memory"] = told(lambda: checkpoint.save(root, 1))
    if me == 0:
        found["left"] = sorted(os.listdir(root))

    # Longer than the time limit, but not dead.
    begun = time.monotonic()
    with instead(os, "fsync", after_a_pause(os.fsync, PAUSE)):
        found["slow disk"] = told(lambda: checkpoint.save(root, 1))
    found["seconds"] = time.monotonic() - begun
    found["again"] = told(lambda: checkpoint.save(root, 1))
    e.enqueue({"a": [[1], [2]]})
    e.dequeue()
    e.apply_gradients({"a": np.ones((2, 4))})
    found["another content"] = told(lambda: checkpoint.save(root, 1))
    checkpoint.save(root, 2)
    verify = OpenStep.verify_tensor
    with instead(OpenStep, "verify_tensor", after_a_pause(verify, PAUSE) if me else verify):
        found["slow read"] = told(lambda: checkpoint.restore(root / "step-00000001"))
    found["restored"] = e.tables["t"][:3, 0].tolist()
    found["another step"] = told(lambda: checkpoint.restore(root / f"step-0000000{1 + me}"))
    damage = raising(CorruptCheckpointError("a block does not match its checksum"))
    with instead(OpenStep, "verify_tensor", damage if me else verify):
        found["damage"] = told(lambda: checkpoint.restore(root / "step-00000002"))
    found["missing"] = told(lambda: checkpoint.restore(root if me == 0 else folder / "nothing"))
    found["unchanged"] = e.tables["t"][:3, 0].tolist()
    found["peaks"] = peaks(folder / "large")
    if me:
        time.sleep(PAUSE)  # in no call
    else:
        begun = time.monotonic()
        found["stuck"] = told(lambda: e({"a": [[1]]}))
        found["waited"] = time.monotonic() - begun
    (folder / f"told-{me}.json").write_text(json.dumps(found))


def peaks(root):
    """Return the host memory that saving and restoring a table of 128 MiB takes at most."""
    found = []
    with engine({"rows": 1 << 19, "dim": 64, "initializer": sc.initializers.Constant(0.5)}) as e:
        checkpoint = sc.Checkpoint(embedding=e)
        for work in (lambda: checkpoint.save(root, 1), lambda: checkpoint.restore(root)):
            tracemalloc.start()
            work()
            found.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    return found


def main(cases, case, folder, process, processes, port):
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        int(processes),
        int(process),
        initialization_timeout=30,
        heartbeat_timeout_seconds=10,
        shutdown_timeout_seconds=10,
    )
    cases[case](Path(folder))
    jax.distributed.shutdown()


def start(cases):
    """Run the case of a script that its arguments name."""
    try:
        main(cases, *sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    start(globals())
