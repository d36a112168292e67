"""Every first-party optimizer in a whole engine: the same bits on every backend and thread."""

import numpy as np
import pytest

import shardcore as sc
from shardcore.plugins import registry

SETTINGS = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True}],
    "Adagrad": [
        {},
        {"use_gradient_accumulation": False},
        {"clipvalue": 0.5, "clip_norm": 1.0, "weight_decay_factor": 0.01, "clip_weight_max": 0.4},
    ],
    "Adam": [{}, {"lazy_adam": False}, {"bias_correction": "row"}],
    "RowwiseAdagrad": [{}, {"preset": "fbgemm"}],
}
LEFT_OUT = {"Custom"}  # is given a function; it has tests of its own
CASES = [
    (name, settings)
    for name in registry.optimizers()
    if name not in LEFT_OUT
    for settings in SETTINGS.get(name, [{}])
]


def trained(name, settings, dtype, backend, options, layout, placement="row"):
    """Return all bytes of tables and slots after four steps."""
    rng = np.random.default_rng(5)
    optimizer = getattr(sc.optimizers, name)(learning_rate=0.1, **settings)
    table = sc.TableConfig(
        40, 12, combiner="mean", name="t", layout=layout, dtype=dtype, placement=placement
    )
    features = {"a": sc.FeatureConfig(table), "b": sc.FeatureConfig(table)}
    with sc.ShardedEmbedding(
        features, optimizer=optimizer, backend=backend, backend_options=options, seed=1
    ) as e:
        for _ in range(4):
            e.enqueue({key: rng.integers(0, 30, (9, 4)) for key in features})
            shapes = {key: array.shape for key, array in e.dequeue().items()}
            e.apply_gradients({key: rng.standard_normal(shape) for key, shape in shapes.items()})
        arrays = [e.tables["t"], *e.slots["t"].values()]
        assert all(np.isfinite(np.asarray(array, np.float64)).all() for array in arrays)
        return [np.asarray(array).tobytes() for array in arrays]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_backends_and_threads_agree_to_the_bit(name, settings, monkeypatch):
    monkeypatch.setattr("shardcore.threads.team.PIECE", 64)
    before = sc.get_num_threads()
    try:
        sc.set_num_threads(1)
        expected = trained(name, settings, "float32", "cpu", {}, "div")
        sc.set_num_threads(2)
        assert trained(name, settings, "float32", "cpu", {}, "mod") == expected
        for hosts, layout, placement in ((3, "mod", "row"), (2, "div", "column")):
            options = {"hosts": hosts}
            ours = trained(name, settings, "float32", "sim", options, layout, placement)
            assert ours == expected
    finally:
        sc.set_num_threads(before)


def test_rounding_by_chance_agrees_to_the_bit():
    settings = {"stochastic_rounding": True}
    expected = trained("Adagrad", settings, "float16", "cpu", {}, "div")
    assert trained("Adagrad", settings, "float16", "sim", {"hosts": 3}, "mod") == expected
    assert trained("Adagrad", {}, "float16", "cpu", {}, "div") != expected


def test_a_restless_optimizer_moves_rows_that_no_batch_names():
    """Adam with lazy_adam=False: momentum goes on moving a row that was named once."""

    def moved(lazy):
        table = sc.TableConfig(4, 2, name="t", initializer=sc.initializers.Zeros())
        optimizer = sc.optimizers.Adam(learning_rate=0.1, lazy_adam=lazy)
        with sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer=optimizer) as e:
            seen = []
            for row in (1, 2):
                e.enqueue(np.array([row]))
                e.apply_gradients(np.ones_like(e.dequeue()))
                seen.append(e.tables["t"][1, 0])
        return seen

    first, second = moved(lazy=True)
    assert first == second < 0
    first, second = moved(lazy=False)
    assert second < first < 0
