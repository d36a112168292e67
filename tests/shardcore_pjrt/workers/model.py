"""The engine that the tests of several processes train, wherever it runs."""

import numpy as np

import shardcore as sc

BAGS = (12, 7, 12)  # of each batch; 7 is a multiple of no number of devices


def make_engine(backend="pjrt", options=None, **settings):
    """Return an engine with tables of every placement, dtype and kind of feature."""
    tables = {
        "item": sc.TableConfig(203, 6, name="item", layout="mod", combiner="sqrtn"),
        "user": sc.TableConfig(
            40, 5, name="user", optimizer=sc.optimizers.Adam(0.05), combiner="sum"
        ),
        "word": sc.TableConfig(
            31, 9, name="word", placement="column", optimizer=sc.optimizers.RowwiseAdagrad(0.1)
        ),
        "day": sc.TableConfig(
            7,
            3,
            name="day",
            placement="replicated",
            dtype="bfloat16",
            optimizer=sc.optimizers.SGD(),
        ),
    }
    features = {
        "bought": sc.FeatureConfig(tables["item"]),
        "seen": sc.FeatureConfig(tables["item"], max_sequence_length=3),
        "who": sc.FeatureConfig(tables["user"], invalid_ids="drop"),
        "said": sc.FeatureConfig(tables["word"]),
        "when": sc.FeatureConfig(tables["day"]),
    }
    return sc.ShardedEmbedding(
        features, sc.optimizers.Adagrad(0.1), backend, options, seed=11, **settings
    )


def make_batch(step, bags):
    """Return (features, weights, gradients) of a batch."""
    rng = np.random.default_rng(step)
    lists = [rng.integers(0, 203, rng.integers(0, 5)).tolist() for _ in range(bags)]
    lists[:1] = [[1, 2]] * min(bags, 1)
    weights = [rng.random(len(ids)).tolist() for ids in lists]
    features = {
        "bought": sc.Ragged.from_lists(lists),
        "seen": sc.Ragged.from_lists(lists),
        "who": rng.integers(-1, 40, (bags, 2)),
        "said": rng.integers(0, 31, (bags, 4)),
        "when": rng.integers(0, 7, bags),
    }
    shapes = {
        "bought": (bags, 6), "seen": (bags, 3, 6), "who": (bags, 5), "said": (bags, 9),
        "when": (bags, 3),
    }  # fmt: skip
    gradients = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    of_bags = np.concatenate([np.empty(0), *weights]).astype(np.float32)
    return features, {**dict.fromkeys(features), "bought": of_bags}, gradients


def contents(engine):
    """Return all rows and slots, by name."""
    found = {name: np.asarray(table[:]) for name, table in engine.tables.items()}
    for table, slots in engine.slots.items():
        found |= {f"{table}/{name}": np.asarray(slot[:]) for name, slot in slots.items()}
    return {name: array.astype(np.float32) for name, array in found.items()}


def train(engine, steps, on_device, to_host):
    """Train some batches; return every activation and what is left in the tables.

    `on_device` makes gradients the backend's own, in every second batch; `to_host` reads arrays.
    """
    found = {}
    for step in steps:
        features, weights, gradients = make_batch(step, BAGS[step % len(BAGS)])
        engine.enqueue(features, weights)
        for name, array in engine.dequeue().items():
            found[f"activations {step} {name}"] = to_host(array)
        if step % 2:
            gradients = {name: on_device(array) for name, array in gradients.items()}
        weight_gradients = engine.apply_gradients(gradients, weight_gradients=True)
        found[f"weights {step}"] = np.asarray(weight_gradients["bought"])
    found |= contents(engine)
    return found
