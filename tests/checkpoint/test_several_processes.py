"""Objects that several processes hold together, with processes that are objects of this test."""

import re
from contextlib import contextmanager

import numpy as np
import pytest
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.errors import ShardcoreValueError


class Processes:
    """The processes as one of them sees them: the one that writes, or another."""

    def __init__(self, writes):
        self.writes = writes
        self.agreed = []
        self.reads = {}

    def agree(self, call, parts):
        self.agreed.append((call, [name for name, _ in parts]))

    def save(self, parts, reads, write):
        self.agree("save", parts)
        self.reads = reads

        def counted(name):
            def read(place):
                self.agreed.append((name, place))
                return reads[name](place)

            return read

        if self.writes:
            write({name: counted(name) for name in reads})

    @contextmanager
    def restoring(self):
        self.agreed.append("begin")
        yield
        self.agreed.append("end")


class Backend(CpuBackend):
    """The embedded backend, as if others held its tables too."""

    process_group = None


def make_engine(together):
    table = sc.TableConfig(6, 2, initializer=sc.initializers.RowId(), name="t")
    backend = Backend()
    backend.process_group = together
    e = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(), backend)
    e.build()
    return e


def test_the_process_that_writes_reads_with_the_others(tmp_path):
    processes = Processes(writes=True)
    model = {"embedding": make_engine(processes), "bias": np.arange(3.0)}
    checkpoint = sc.Checkpoint(model=model, names=np.array(["a", "b"]))
    path = checkpoint.save(tmp_path, 3)
    assert path == tmp_path / "step-00000003"
    first, *reads = processes.agreed
    assert first == (
        "save",
        ["step", "root", "metadata of the objects", "shape of the tensors"],
    )
    assert ("model/embedding/t", (0, 0, 6, 2)) in reads
    assert {name for name, _ in reads} == {"model/bias", "model/embedding/t", "names"}

    alone = sc.Checkpoint(
        model={"embedding": make_engine(None), "bias": model["bias"]}, names=np.array(["a", "b"])
    ).save(tmp_path / "alone", 3)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == {
        file.name: file.read_bytes() for file in alone.iterdir()
    }

    processes.agreed.clear()
    model["bias"][:] = 0
    assert checkpoint.restore(tmp_path) == 3
    assert processes.agreed == ["begin", ("restore", ["step", "manifest"]), "end"]
    np.testing.assert_array_equal(model["bias"], np.arange(3.0))


def test_the_others_write_nothing(tmp_path):
    processes = Processes(writes=False)
    checkpoint = sc.Checkpoint(embedding=make_engine(processes))
    assert checkpoint.save(tmp_path / "root", 3) == tmp_path / "root" / "step-00000003"
    assert list(tmp_path.iterdir()) == []
    rows = processes.reads["embedding/t"]((1, 0, 2, 2))
    np.testing.assert_array_equal(rows, [[1, 1], [2, 2]])


def test_a_view_of_a_table_is_held_by_the_processes_of_the_table(tmp_path):
    processes = Processes(writes=False)
    e = make_engine(processes)
    sc.Checkpoint(rows=[e.tables["t"], np.zeros(2)]).save(tmp_path / "root", 3)
    assert list(processes.reads) == ["rows/0", "rows/1"]
    assert list(tmp_path.iterdir()) == []


def test_objects_of_different_processes_are_refused(tmp_path):
    one, other = make_engine(Processes(True)), make_engine(Processes(True))
    message = (
        "objects of one checkpoint must be held by the same devices of several processes: "
        "'a' and 'b' are not"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        sc.Checkpoint(a=one, b=other).save(tmp_path, 1)
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        sc.Checkpoint(c={"a": one, "b": other}).save(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []
