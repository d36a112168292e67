"""Tables are created by a build or by a restore, all of them or none, whatever comes between."""

import re
import threading
import time

import numpy as np
import pytest
from shardcore_cpu.backend import CpuBackend
from shardcore_sim.backend import SimBackend
from shardcore_sim.faults import LoseHost

import shardcore as sc
from shardcore.checkpoint.state import RestorePlan
from shardcore.errors import ShardcoreRuntimeError, ShardcoreValueError

ROWS = sc.initializers.RowId()
BROKEN = "the cluster is broken until a checkpoint is restored"


def engine_on(backend):
    tables = [sc.TableConfig(8, 2, initializer=ROWS, name=name) for name in "ab"]
    features = {table.name: sc.FeatureConfig(table) for table in tables}
    return sc.ShardedEmbedding(features, sc.optimizers.SGD(1.0), backend)


def rows_of(e):
    return {name: np.asarray(table).tolist() for name, table in e.tables.items()}


class Disk:
    """An object of a checkpoint whose restore fails, unless it is `well`."""

    def __init__(self):
        self.well = False

    def checkpoint_metadata(self):
        return {}

    def checkpoint_tensors(self):
        return []

    def checkpoint_restore(self, metadata, tensors, *, slots):
        def begin():
            if not self.well:
                raise OSError("the disk is gone")

        return RestorePlan({}, live=True, begin=begin)


@pytest.fixture
def saved(tmp_path):
    with engine_on("cpu") as e:
        e.build()
        e.tables["a"].assign(np.full((8, 2), 7.0, np.float32))
        return sc.Checkpoint(a_disk=Disk(), e=e).save(tmp_path, 3), rows_of(e)


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
def test_a_restore_that_fails_leaves_hosts_as_they_were(saved, broken):
    """A broken cluster refuses what is written to one row of it, as it did before the restore."""
    path, rows = saved
    e = engine_on(SimBackend(2, [LoseHost(0, 0)] if broken else []))
    e.build()
    if broken:
        with pytest.raises(ShardcoreRuntimeError, match="host 0 was lost"):
            e({"a": [[7], [0]], "b": [[6], [1]]})
    disk = Disk()
    checkpoint = sc.Checkpoint(e=e, a_disk=disk)
    with pytest.raises(OSError, match="the disk is gone"):
        checkpoint.restore(path)
    if broken:
        for call in (
            lambda: e._backend.scatter("a", None, np.array([1]), np.ones((1, 2), np.float32)),
            lambda: e({"a": [[7], [0]], "b": [[6], [1]]}),
        ):
            with pytest.raises(ShardcoreRuntimeError, match=BROKEN):
                call()
    else:
        e.tables["a"][1] = 5
        assert e.tables["a"][1].tolist() == [5, 5]
    disk.well = True
    assert checkpoint.restore(path) == 3
    assert rows_of(e) == rows


def test_a_restore_that_fails_leaves_an_engine_that_is_not_built(saved):
    path, rows = saved
    e, disk = engine_on("cpu"), Disk()
    checkpoint = sc.Checkpoint(e=e, a_disk=disk)
    with pytest.raises(OSError, match="the disk is gone"):
        checkpoint.restore(path)
    assert e._backend.specs == {}
    with pytest.raises(ShardcoreRuntimeError, match="there are no tables yet"):
        rows_of(e)
    disk.well = True
    assert checkpoint.restore(path) == 3
    assert rows_of(e) == rows


def test_a_build_in_the_midst_of_a_restore_waits_and_creates_nothing(saved):
    """The restore creates the tables under the lock of builds, and keeps them to itself."""
    path, rows = saved
    ended, made = [], []

    def build():
        try:
            e.build()
            ended.append("built")
        except ShardcoreRuntimeError as error:
            ended.append(str(error))

    class Slow(CpuBackend):
        def make_table(self, spec):
            super().make_table(spec)
            made.append(spec.name)
            if spec.name == "b":
                builders.extend(threading.Thread(target=build) for _ in range(3))
                for builder in builders:
                    builder.start()
                time.sleep(0.2)  # until they wait
                assert not ended

    builders = []
    e = engine_on(Slow())
    disk = Disk()
    disk.well = True
    assert sc.Checkpoint(e=e, a_disk=disk).restore(path) == 3
    for builder in builders:
        builder.join(20)
    assert made == ["a", "b"]
    assert len(ended) == 3
    told = "the tables are being restored; a restore that was cut short must be made again"
    assert set(ended) <= {"built", told}
    assert rows_of(e) == rows


def test_a_restore_planned_before_a_build_is_refused(saved):
    path, _ = saved
    e = engine_on("cpu")

    class Building:
        """An object that builds the engine once its restore is planned."""

        checkpoint_metadata = Disk.checkpoint_metadata
        checkpoint_tensors = Disk.checkpoint_tensors

        def checkpoint_restore(self, metadata, tensors, *, slots):
            e.build()
            return RestorePlan({}, live=False)

    message = "the tables were created while a restore began: restore once more"
    with pytest.raises(ShardcoreRuntimeError, match=re.escape(message)):
        sc.Checkpoint(e=e, a_disk=Building()).restore(path)
    assert e.tables["a"][3].tolist() == [3, 3]
    assert e.step == 0


def test_a_second_engine_on_a_backend_is_refused_and_drops_nothing():
    backend = CpuBackend()
    first, second = engine_on(backend), engine_on(backend)
    first.build()
    with pytest.raises(ShardcoreValueError, match="has a table 'a' already"):
        second.build()
    assert first.tables["b"][2].tolist() == [2, 2]
    first.close()


def test_the_backend_is_told_how_a_restore_ended(saved):
    path, _ = saved
    seen = []

    class Context:
        def __enter__(self):
            seen.append("entered")

        def __exit__(self, kind, error, trace):
            seen.append(kind)

    class Watched(CpuBackend):
        def restoring(self):
            return Context()

    e, disk = engine_on(Watched()), Disk()
    e.build()
    with pytest.raises(OSError, match="the disk is gone"):
        sc.Checkpoint(e=e, a_disk=disk).restore(path)
    assert seen == ["entered", ShardcoreRuntimeError]
    disk.well = True
    sc.Checkpoint(e=e, a_disk=disk).restore(path)
    assert seen[2:] == ["entered", None]
