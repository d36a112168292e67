"""Tables made in one call: a backend is given them all at once, and has all of them or none."""

import re

import numpy as np
import pytest
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.backend import TableSpec
from shardcore.errors import ShardcoreValueError
from shardcore.initializers import RowId
from shardcore.testing import ModelBackend


def spec(name, initializer=None):
    return TableSpec(name, 4, 2, np.dtype("f4"), initializer or RowId(), 0)


def failing(rows, row_shape, dtype, seed):
    raise ArithmeticError("no value for these rows")


def test_an_engine_gives_its_backend_all_tables_at_once():
    given = []

    class Watched(ModelBackend):
        def make_tables(self, specs):
            assert list(self.specs) == [one.name for one in specs], "specs hold them already"
            given.append([one.name for one in specs])
            super().make_tables(specs)

    of = {name: sc.FeatureConfig(sc.TableConfig(4, 2, name=name)) for name in "cab"}
    with sc.ShardedEmbedding(of, backend=Watched()) as e:
        e.build()
        assert given == [list(e.tables)]
        assert sorted(given[0]) == ["a", "b", "c"]


def test_tables_of_a_call_that_fails_are_all_given_back():
    removed = []

    class Watched(CpuBackend):
        def remove_table(self, table):
            removed.append(table)
            super().remove_table(table)

    backend = Watched()
    backend.create_table(spec("other"))
    with pytest.raises(ArithmeticError, match="no value for these rows"):
        backend.create_tables([spec("a"), spec("b", failing), spec("c")])
    assert removed == ["c", "b", "a"]
    assert list(backend.specs) == ["other"]
    backend.create_tables([spec("a"), spec("b")])
    assert backend.gather("b", None, np.array([3])).tolist() == [[3, 3]]


@pytest.mark.parametrize("names", ["aba", "xt"])
def test_a_name_is_taken_once_in_a_call_too(names):
    backend = CpuBackend()
    backend.create_table(spec("t"))
    message = (
        f"backend 'cpu' has a table {names[-1]!r} already: every engine needs a backend of its own"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        backend.create_tables([spec(name) for name in names])
    assert list(backend.specs) == ["t"]


def test_a_table_that_is_ruled_out_leaves_the_others_unmade():
    class Watched(CpuBackend):
        def make_tables(self, specs):
            raise AssertionError("nothing may be made")

    wrong = TableSpec("w", 4, 2, np.dtype("f4"), RowId(), 0, layout=(1, 2, 1), placement="sideways")
    with pytest.raises(sc.ShardcoreError, match="'sideways'"):
        Watched().create_tables([spec("a"), wrong])
