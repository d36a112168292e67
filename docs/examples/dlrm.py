"""A small DLRM: embeddings by shardcore, the rest by JAX and optax, on any backend.

A synthetic log holds clicks of users on items; the model learns them. Its tables live where
``--backend`` puts them, in this process, on simulated hosts, or cut over the devices of a mesh, and
the loss is the same. Run it with ``--help``. It needs the packages jax and optax.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

import shardcore as sc

DIM = 16
USERS, ITEMS, TAGS, COUNTRIES, NUMBERS = 2_000, 5_000, 300, 40, 6


# --- the log --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Some lines of the log; `ids` go to shardcore, `numbers` and `clicks` to JAX."""

    ids: dict[str, Any]
    numbers: np.ndarray[Any, Any]  # (lines, NUMBERS), float32
    clicks: np.ndarray[Any, Any]  # (lines, 1), float32, 0 or 1


class ClickLog:
    """Lines that follow hidden rules: likings of users, items, tags and countries, and taste."""

    def __init__(self, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self.seed = seed
        draw = np.random.default_rng([seed, 0])
        self._likings = {
            "user": draw.normal(0, 0.7, USERS),
            "item": draw.normal(0, 1.0, ITEMS),
            "tags": draw.normal(0, 1.0, TAGS),
            "country": draw.normal(0, 0.7, COUNTRIES),
        }
        self._taste = draw.normal(0, 0.7, (ITEMS, 4))
        self._slopes = draw.normal(0, 0.4, NUMBERS)

    def batch(self, number: int, held_out: bool = False) -> Batch:
        """Return batch `number`, always the same; those held out are of a stream of their own."""
        draw = np.random.default_rng([self.seed, 2 if held_out else 1, number])

        def zipf(rows: int, count: int) -> np.ndarray[Any, Any]:
            return (rows ** draw.random(count)).astype(np.int64) - 1  # id i: as 1 / (i + 1), nearly

        def bags(rows: int, most: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            lengths = draw.integers(0, most + 1, self.batch_size)
            return zipf(rows, lengths.sum()), np.concatenate([[0], lengths.cumsum()])

        ids: dict[str, Any] = {
            "user": zipf(USERS, self.batch_size),
            "item": zipf(ITEMS, self.batch_size),
            "history": bags(ITEMS, 12),
            "tags": bags(TAGS, 5),
            "country": zipf(COUNTRIES, self.batch_size),
        }
        numbers = draw.normal(size=(self.batch_size, NUMBERS)).astype(np.float32)
        score = numbers @ self._slopes
        for name in ("user", "item", "country"):
            score += self._likings[name][ids[name]]
        score += _sums(self._likings["tags"][:, None], *ids["tags"])[:, 0]
        known = _sums(self._taste, *ids["history"])
        score += 0.5 * (known * self._taste[ids["item"]]).sum(axis=1)
        clicks = draw.random(self.batch_size) < 1 / (1 + np.exp(-score))
        return Batch(ids, numbers, clicks[:, None].astype(np.float32))


def _sums(
    rows: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], row_splits: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    bag = np.repeat(np.arange(row_splits.size - 1), np.diff(row_splits))
    sums = np.zeros((row_splits.size - 1, rows.shape[1]))
    np.add.at(sums, bag, rows[ids])
    return sums


# --- the embeddings: shardcore --------------------------------------------------------------------


def features() -> dict[str, sc.FeatureConfig]:
    """Return the table of each feature; items seen and items on offer share one."""
    user = sc.TableConfig(USERS, DIM, name="user")
    item = sc.TableConfig(ITEMS, DIM, combiner="mean", layout="mod", name="item")
    tag = sc.TableConfig(TAGS, DIM, combiner="sum", name="tag")
    country = sc.TableConfig(COUNTRIES, DIM, placement="replicated", name="country")
    tables = {"user": user, "item": item, "history": item, "tags": tag, "country": country}
    return {name: sc.FeatureConfig(table) for name, table in tables.items()}


def engine_on(backend: str, pipeline: bool = False, **options: Any) -> Any:
    """Return the tables on a backend: its name and options play a part here and nowhere else."""
    return sc.ShardedEmbedding(
        features(),
        optimizer=sc.optimizers.Adagrad(learning_rate=0.3),
        backend=backend,
        backend_options=options,
        pipeline=pipeline,
    )


# --- the dense part: JAX and optax ----------------------------------------------------------------

OPTIMIZER = optax.adagrad(0.1)


def initial_params(seed: int) -> dict[str, Any]:
    """Return the layers of the two MLPs."""
    vectors = 1 + len(features())
    pairs = vectors * (vectors - 1) // 2
    sizes = {"bottom": (NUMBERS, 32, DIM), "top": (DIM + pairs, 32, 1)}
    draw = np.random.default_rng([seed, 3])
    return {
        name: [
            {
                "kernel": draw.normal(0, (2 / (m + n)) ** 0.5, (m, n)).astype(np.float32),
                "bias": np.zeros(n, np.float32),
            }
            for m, n in itertools.pairwise(widths)
        ]
        for name, widths in sizes.items()
    }


def mlp(layers: Sequence[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Return layers applied with ReLU between them."""
    for number, layer in enumerate(layers):
        x = (jax.nn.relu(x) if number else x) @ layer["kernel"] + layer["bias"]
    return x


def mean_loss(
    params: dict[str, Any], activations: dict[str, Any], numbers: jax.Array, clicks: jax.Array
) -> jax.Array:
    """Return the cross-entropy of the clicks, per line."""
    dense = jax.nn.relu(mlp(params["bottom"], numbers))
    vectors = jnp.stack([dense, *(activations[name] for name in sorted(activations))], axis=1)
    products = jnp.einsum("bid,bjd->bij", vectors, vectors)
    i, j = np.triu_indices(vectors.shape[1], k=1)
    logits = mlp(params["top"], jnp.concatenate([dense, products[:, i, j]], axis=1))
    return optax.sigmoid_binary_cross_entropy(logits, clicks).mean()


def train_step(
    params: Any, state: Any, activations: Any, numbers: jax.Array, clicks: jax.Array
) -> tuple[jax.Array, Any, Any, Any]:
    """Return the loss, new params and state, and the gradients of the activations."""
    loss_and_gradients = jax.value_and_grad(mean_loss, argnums=(0, 1))
    loss, (gradients, of_activations) = loss_and_gradients(params, activations, numbers, clicks)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return loss, optax.apply_updates(params, updates), state, of_activations


# --- both together --------------------------------------------------------------------------------


class Dlrm:
    """The tables and the dense part, trained together.

    Parameters
    ----------
    engine : shardcore.ShardedEmbedding
    log : ClickLog
    seed : int
    """

    def __init__(self, engine: Any, log: ClickLog, seed: int = 0) -> None:
        self.engine = engine
        self.log = log
        # The dense part lives where the activations do: on the mesh that they are cut over, each
        # device with its lines and all params; or, if they are NumPy's, where JAX puts things.
        self._by_line = self._everywhere = None
        one = next(iter(engine(log.batch(0).ids).values()))
        if isinstance(one, jax.Array):
            self._by_line = one.sharding
            self._everywhere = NamedSharding(one.sharding.mesh, PartitionSpec())
        params = initial_params(seed)
        self.dense = jax.device_put((params, OPTIMIZER.init(params)), self._everywhere)
        out = (self._everywhere, self._everywhere, self._everywhere, self._by_line)
        self._step = jax.jit(train_step, donate_argnums=(0, 1), out_shardings=out)
        self._loss = jax.jit(mean_loss, out_shardings=self._everywhere)

    def train(self, steps: int) -> list[jax.Array]:
        """Train on the batches that follow the last one; return the loss of each, still unread."""
        losses = []
        first = self.engine.step
        batch = self.log.batch(first)
        for number in range(first, first + steps):
            self.engine.enqueue(batch.ids)
            lines = jax.device_put((batch.numbers, batch.clicks), self._by_line)
            batch = self.log.batch(number + 1)
            activations = self.engine.dequeue()
            loss, *dense, gradients = self._step(*self.dense, activations, *lines)
            self.engine.apply_gradients(gradients)
            self.dense = tuple(dense)
            losses.append(loss)  # to read it here would be to wait for the devices
        return losses

    def held_out_loss(self, batches: int = 4) -> float:
        """Return the mean loss of lines that it is never trained on."""
        total = 0.0
        for number in range(batches):
            batch = self.log.batch(number, held_out=True)
            lines = jax.device_put((batch.numbers, batch.clicks), self._by_line)
            total += float(self._loss(self.dense[0], self.engine(batch.ids), *lines))
        return total / batches

    def save(self, root: str | os.PathLike[str]) -> None:
        """Save tables, slots and the dense part as one step."""
        leaves = [np.array(leaf) for leaf in jax.tree.leaves(self.dense)]
        sc.Checkpoint(tables=self.engine, dense=leaves).save(root, step=self.engine.step)

    def restore(self, root: str | os.PathLike[str]) -> int:
        """Restore the last step, saved from any backend; return its number."""
        leaves = [np.array(leaf) for leaf in jax.tree.leaves(self.dense)]
        step = sc.Checkpoint(tables=self.engine, dense=leaves).restore(root)
        dense = jax.tree.unflatten(jax.tree.structure(self.dense), leaves)
        self.dense = jax.device_put(dense, self._everywhere)
        return step


def main(argv: Sequence[str] | None = None) -> None:
    """Train as the command line says, and print the loss."""
    parser = argparse.ArgumentParser(description="Train a small DLRM on a synthetic log of clicks.")
    positive = partial(_at_least, 1)
    parser.add_argument("--backend", choices=("cpu", "sim", "pjrt", "tpu"), default="cpu")
    parser.add_argument("--devices", type=positive, help="devices, or hosts of sim; not for cpu")
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--batch-size", type=positive, default=256)
    parser.add_argument("--seed", type=partial(_at_least, 0), default=0)
    parser.add_argument("--pipeline", action="store_true", help="work on tables in the background")
    parser.add_argument("--platform", help="of pjrt: cpu, cuda, tpu, ...; cpu by default")
    options = parser.parse_args(argv)
    of_backend: dict[str, Any] = {}
    if options.devices is not None:
        if options.backend == "cpu":
            parser.error("--devices is for sim, pjrt and tpu: the backend cpu is this process")
        of_backend["hosts" if options.backend == "sim" else "devices"] = options.devices
    if options.platform is not None:
        if options.backend != "pjrt":
            parser.error("--platform is for pjrt")
        of_backend["platform"] = options.platform
    log = ClickLog(options.batch_size, options.seed)
    with engine_on(options.backend, options.pipeline, **of_backend) as engine:
        model = Dlrm(engine, log, options.seed)
        print(f"before: held-out loss {model.held_out_loss():.5f}")
        part = max(1, options.steps // 10)
        while engine.step < options.steps:
            losses = np.array(model.train(min(part, options.steps - engine.step)))
            print(f"step {engine.step}: loss {losses.mean():.5f}")
        print(f"after: held-out loss {model.held_out_loss():.5f}")


def _at_least(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number


if __name__ == "__main__":
    main()
