"""Learn clicks from Criteo's logs, TSV or Parquet: a small DLRM in shardcore and NumPy.

A row is a label, 13 integers and 26 categories of 8 hexadecimal digits; any but the label may be
empty. Rows are read batch by batch; every tenth batch is held out: scored, and never trained on.

    python docs/examples/criteo.py --generate 40000 clicks.tsv
    python docs/examples/criteo.py clicks.tsv

The file is read by pyarrow: `pip install pyarrow`, or the extra `arrow`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardcore as sc

Array = NDArray[Any]
Layers = list[dict[str, Array]]

NUMBERS = [f"I{n}" for n in range(1, 14)]
CATEGORIES = [f"C{n}" for n in range(1, 27)]
DIM = 16
PAIRS = np.triu_indices(1 + len(CATEGORIES), k=1)
HELD_OUT = 10  # one batch of so many


# --- rows -----------------------------------------------------------------------------------------


def batches(path: Path, size: int) -> Iterator[tuple[Array, Array, Any]]:
    """Yield labels, numbers and columns of categories of `size` rows; of fewer at the end."""
    for batch in of_size(blocks(path, size), size):
        label, *rest = batch.columns
        numbers = [one.fill_null(0).to_numpy(zero_copy_only=False) for one in rest[:13]]
        yield label.to_numpy(zero_copy_only=False), np.stack(numbers, axis=1), rest[13:]


def of_size(blocks: Iterator[Any], size: int) -> Iterator[Any]:
    """Yield the rows of record batches of any size in those of one size."""
    import pyarrow as pa

    waiting: list[Any] = []
    for block in blocks:
        rows = pa.Table.from_batches([*waiting, block])
        whole = len(rows) - len(rows) % size
        for start in range(0, whole, size):
            yield from rows[start : start + size].combine_chunks().to_batches()
        waiting = rows[whole:].to_batches()
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def blocks(path: Path, size: int) -> Iterator[Any]:
    """Yield the file's rows as Arrow's record batches: of `size` rows, or of a megabyte of text."""
    from pyarrow import csv, int64, parquet, string

    kinds = dict.fromkeys(["label", *NUMBERS], int64()) | dict.fromkeys(CATEGORIES, string())
    if path.suffix != ".parquet":
        yield from csv.open_csv(
            path,
            csv.ReadOptions(column_names=list(kinds)),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            csv.ConvertOptions(column_types=kinds),
        )
        return
    with parquet.ParquetFile(path) as log:  # by place: files name their columns as they like
        if len(log.schema_arrow) != len(kinds):
            raise ValueError(f"{path} must have {len(kinds)} columns, has {len(log.schema_arrow)}")
        yield from log.iter_batches(size)


def ids_of(categories: Any, buckets: int) -> dict[str, Array]:
    """Return the row of each category; an empty one is a category too."""
    filled = (column.cast("string").fill_null("") for column in categories)
    return {name: sc.hash_ids(one, buckets) for name, one in zip(CATEGORIES, filled, strict=True)}


def generate(path: Path, rows: int, seed: int = 0) -> None:
    """Write a log of Criteo's form whose clicks follow hidden likings, all from `seed`."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    draw = np.random.default_rng(seed)
    score = np.full(rows, -1.5)
    columns = {}
    for name in NUMBERS:
        numbers = np.floor(draw.lognormal(1, 1.5, rows)).astype(np.int64) - 1
        score += draw.normal(0, 0.1) * np.log1p(np.maximum(numbers, 0))
        columns[name] = pa.array(numbers, mask=draw.random(rows) < 0.2)
    for name in CATEGORIES:
        size = int(4 * 1000 ** draw.random())  # 4 to 4000 categories, few of them frequent
        words = pa.array([f"{word:08x}" for word in draw.integers(0, 2**32, size)])
        chosen = (size ** draw.random(rows)).astype(np.int64) - 1
        score += draw.normal(0, 0.5, size)[chosen]
        columns[name] = words.take(pa.array(chosen, mask=draw.random(rows) < 0.1))
    label = (draw.random(rows) < 1 / (1 + np.exp(-score))).astype(np.int64)
    table = pa.table({"label": label, **columns})
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        plain = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        csv.write_csv(table, path, plain)


# --- the dense part -------------------------------------------------------------------------------


def initial_layers(widths: Sequence[int], draw: np.random.Generator) -> Layers:
    """Return the layers of an MLP, each with what Adagrad remembers of it."""
    layers = []
    for m, n in itertools.pairwise(widths):
        kernel = draw.normal(0, (2 / (m + n)) ** 0.5, (m, n)).astype(np.float32)
        layer = {"kernel": kernel, "bias": np.zeros(n, np.float32)}
        layers.append(layer | {f"{name}_squares": np.zeros_like(w) for name, w in layer.items()})
    return layers


def forward(layers: Layers, x: Array) -> tuple[Array, list[Array]]:
    """Return layers applied with ReLU between them, and the input of each."""
    inputs = []
    for number, layer in enumerate(layers):
        x = np.maximum(x, 0) if number else x
        inputs.append(x)
        x = x @ layer["kernel"] + layer["bias"]
    return x, inputs


def backward(layers: Layers, inputs: list[Array], gradient: Array) -> tuple[Layers, Array]:
    """Return the gradients of the layers and of the first input."""
    gradients = []
    for number, (layer, x) in reversed(list(enumerate(zip(layers, inputs, strict=True)))):
        gradients.append({"kernel": x.T @ gradient, "bias": gradient.sum(axis=0)})
        gradient = gradient @ layer["kernel"].T
        gradient = gradient * (x > 0) if number else gradient
    return gradients[::-1], gradient


def scores_of(model: dict[str, Layers], numbers: Array, vectors: dict[str, Array]) -> Any:
    """Return the logit of each row, and what `gradients_of` needs of the way there."""
    logs = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
    bottom, of_bottom = forward(model["bottom"], logs)
    stacked = np.stack([bottom, *(vectors[name] for name in CATEGORIES)], axis=1)
    products = stacked @ stacked.transpose(0, 2, 1)
    top, of_top = forward(model["top"], np.hstack([bottom, products[:, *PAIRS]]))
    return top[:, 0], (of_bottom, stacked, of_top)


def gradients_of(
    model: dict[str, Layers], on_the_way: Any, gradient: Array
) -> tuple[dict[str, Layers], dict[str, Array]]:
    """Return the gradients of the layers and of the vectors, from those of the logits."""
    of_bottom, stacked, of_top = on_the_way
    top, inner = backward(model["top"], of_top, gradient[:, None])
    products = np.zeros((len(stacked), stacked.shape[1], stacked.shape[1]), inner.dtype)
    products[:, *PAIRS] = inner[:, DIM:]
    vectors = (products + products.transpose(0, 2, 1)) @ stacked
    bottom, _ = backward(model["bottom"], of_bottom, inner[:, :DIM] + vectors[:, 0])
    by_name = {name: vectors[:, 1 + n] for n, name in enumerate(CATEGORIES)}
    return {"bottom": bottom, "top": top}, by_name


def update(layers: Layers, gradients: Layers, learning_rate: float) -> None:
    """Take a step of Adagrad, in place."""
    for layer, of_layer in zip(layers, gradients, strict=True):
        for name, gradient in of_layer.items():
            squares = layer[f"{name}_squares"]
            squares += gradient**2
            layer[name] -= learning_rate * gradient / (np.sqrt(squares) + 1e-8)


def auc(scores: Array, labels: Array) -> float:
    """Return how often a click is scored above a row without one; a tie counts half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    clicks = int(labels.sum())
    others = len(labels) - clicks
    above = float(ranks[labels == 1].sum()) - clicks * (clicks + 1) / 2
    return above / (clicks * others) if clicks and others else float("nan")


# --- both together --------------------------------------------------------------------------------


def train(
    engine: Any, model: dict[str, Layers], stream: Iterator[Any], options: argparse.Namespace
) -> tuple[int, str]:
    """Train on the next `options.report` batches; return the last one's number, 0 if none."""
    began = time.perf_counter()
    number, rows = 0, 0
    losses, scored, clicked = [], [], []
    for number, (labels, numbers, categories) in itertools.islice(stream, options.report):
        rows += len(labels)
        held_out = number % HELD_OUT == 0
        lookup = engine.lookup(ids_of(categories, options.buckets), training=not held_out)
        logits, on_the_way = scores_of(model, numbers, lookup.activations)
        if held_out:
            scored.append(logits)
            clicked.append(labels)
            continue
        losses.append(np.mean(np.logaddexp(0, logits) - labels * logits))  # the cross-entropy
        off = (np.tanh(logits / 2) / 2 + 0.5 - labels) / len(labels)
        of_layers, of_vectors = gradients_of(model, on_the_way, off.astype(np.float32))
        lookup.apply_gradients(of_vectors)
        for name, layers in model.items():
            update(layers, of_layers[name], options.learning_rate)
    report = [f"{rows / (time.perf_counter() - began):,.0f} rows per second"]
    if losses:
        report.append(f"loss {sum(losses) / len(losses):.4f}")
    if scored:
        report.append(f"held-out AUC {auc(np.concatenate(scored), np.concatenate(clicked)):.4f}")
    return number, ", ".join(report)


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description="Learn clicks from Criteo's logs.")
    parser.add_argument("file", type=Path, help="*.parquet, else tab-separated (*.gz too)")
    parser.add_argument("--generate", type=positive, metavar="ROWS", help="write the file instead")
    parser.add_argument("--rows", type=positive, help="read no more of the file than these")
    parser.add_argument("--batch-size", type=positive, default=512)
    parser.add_argument("--buckets", type=positive, default=100_000, help="rows of a table")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--report", type=positive, default=100, help="after so many batches")
    parser.add_argument("--checkpoints", type=Path, help="saves at each report here, and goes on")
    options = parser.parse_args()
    if options.generate:
        generate(options.file, options.generate)
        return
    if not options.file.exists():
        parser.error(f"there is no file {options.file}")

    tables = {name: sc.TableConfig(options.buckets, DIM, name=name) for name in CATEGORIES}
    features = {name: sc.FeatureConfig(table) for name, table in tables.items()}
    optimizer = sc.optimizers.RowwiseAdagrad(options.learning_rate, preset="fbgemm")
    draw = np.random.default_rng(0)
    model = {
        "bottom": initial_layers((len(NUMBERS), 64, DIM), draw),
        "top": initial_layers((DIM + len(PAIRS[0]), 64, 1), draw),
    }
    with sc.ShardedEmbedding(features, optimizer) as engine:
        checkpoint, done = sc.Checkpoint(tables=engine, dense=model), 0
        if options.checkpoints and sc.checkpoint.steps(options.checkpoints):
            done = checkpoint.restore(options.checkpoints)
            print(f"goes on after batch {done}")
        end = options.rows and math.ceil(options.rows / options.batch_size)
        numbered = enumerate(batches(options.file, options.batch_size), 1)
        stream = itertools.islice(numbered, done, end)
        while True:
            done, report = train(engine, model, stream, options)
            if not done:  # the file has ended
                break
            print(f"batch {done}: {report}", flush=True)
            if options.checkpoints:
                checkpoint.save(options.checkpoints, step=done)


def positive(text: str) -> int:
    """Return a count from the command line."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    main()
