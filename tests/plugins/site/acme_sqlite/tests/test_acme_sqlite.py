import numpy as np
import pytest

import shardcore as sc
from shardcore.testing import BackendConformance


def stored(backend, table, slot):
    """Return what the database holds, without a method of the backend."""
    query = "SELECT content FROM cells WHERE name = ? AND slot = ? ORDER BY row"
    cells = backend.database.execute(query, (table, slot or "")).fetchall()
    shape, dtype = backend.specs[table].stored_as(slot)
    return np.frombuffer(b"".join(cell for (cell,) in cells), dtype).reshape(shape)


class TestSqlite(BackendConformance):
    @pytest.fixture
    def backend(self):
        return sc.get_backend("sqlite")

    @pytest.fixture
    def raw_rows(self):
        return stored


def test_a_file_is_as_good(tmp_path):
    path = tmp_path / "rows.db"
    table = sc.TableConfig(10, 2, initializer=sc.initializers.Zeros(), name="t")
    with sc.ShardedEmbedding(
        sc.FeatureConfig(table),
        sc.optimizers.SGD(learning_rate=0.5),
        backend="sqlite",
        backend_options={"path": str(path)},
    ) as engine:
        engine.enqueue([[3]])
        engine.dequeue()
        engine.apply_gradients(np.ones((1, 2), np.float32))
        assert engine.tables["t"][3].tolist() == [-0.5, -0.5]
    assert path.stat().st_size > 0
