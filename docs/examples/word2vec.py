"""Vectors of words: skip-gram with negative sampling, on the source of Python's standard library.

Two tables are trained, one of a word as the middle of a window and one of it as a neighbour.

    python docs/examples/word2vec.py --words 300000 --epochs 2 --save words.npy

It needs NumPy alone; to save as ``.arrow`` too, pyarrow.
"""

from __future__ import annotations

import argparse
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardcore as sc

Array = NDArray[Any]


# --- text -----------------------------------------------------------------------------------------


def source_words(most: int) -> list[str]:
    """Return the words of the standard library's modules, in the order of their names."""
    words: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        words += re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8", errors="replace"))
    return words[:most]


def as_ids(words: list[str], least: int) -> tuple[list[str], Array, Array]:
    """Return the words that come `least` times, by frequency; their counts; the text as ids."""
    common = [(word, count) for word, count in Counter(words).most_common() if count >= least]
    number = {word: n for n, (word, _) in enumerate(common)}
    ids = np.array([number[word] for word in words if word in number], np.int64)
    return list(number), np.array([count for _, count in common]), ids


def subsampled(ids: Array, counts: Array, draw: np.random.Generator, threshold: float) -> Array:
    """Return the text with frequent words left out at random: of share f, all but √(t / f)."""
    keep = np.sqrt(threshold * counts.sum() / counts)
    kept: Array = ids[draw.random(len(ids)) < keep[ids]]
    return kept


def pairs(ids: Array, window: int, draw: np.random.Generator) -> tuple[Array, Array]:
    """Return (middles, neighbours), shuffled; each place has a window of 1 to `window` words."""
    widths = draw.integers(1, window + 1, len(ids))
    middles, neighbours = [], []
    for distance in range(1, window + 1):
        left, right = ids[:-distance], ids[distance:]
        from_left, from_right = widths[:-distance] >= distance, widths[distance:] >= distance
        middles += [left[from_left], right[from_right]]
        neighbours += [right[from_left], left[from_right]]
    order = draw.permutation(sum(map(len, middles)))
    return np.concatenate(middles)[order], np.concatenate(neighbours)[order]


# --- the sampler of negatives ---------------------------------------------------------------------


def alias_table(weights: Array) -> tuple[Array, Array]:
    """Return Walker's table: column i is i with a chance of threshold[i], else alias[i].

    Every column has the mean weight. Ids of less owe the rest, ids of more have it to spare, and
    one sweep along both pays the debts; one that gave too much is in debt to the next.
    """
    share = weights * (len(weights) / weights.sum())
    is_small = share < min(1, share.max())  # rounding may leave none of exactly 1
    small, large = np.flatnonzero(is_small), np.flatnonzero(~is_small)
    owed, spare = np.cumsum(1 - share[small]), np.cumsum(share[large] - 1)
    begins = owed - (1 - share[small])
    giver = np.searchsorted(spare, begins, side="right").clip(max=len(large) - 1)
    paid = np.concatenate([[0], owed])[np.searchsorted(begins, spare)]
    threshold, alias = np.minimum(share, 1), np.arange(len(share))
    alias[small] = large[giver]
    threshold[large[:-1]] = (1 - (paid - spare))[:-1].clip(0, 1)
    alias[large[:-1]] = large[1:]
    return threshold, alias


def sample(table: tuple[Array, Array], shape: tuple[int, ...], draw: np.random.Generator) -> Array:
    """Return ids, drawn by the weights of an alias table at the same cost for any of them."""
    threshold, alias = table
    column = draw.integers(0, len(alias), shape)
    return np.where(draw.random(shape) < threshold[column], column, alias[column])


# --- training -------------------------------------------------------------------------------------


def new_engine(rows: int, dim: int, learning_rate: float, seed: int) -> Any:
    """Return an engine of two tables: words as middles, and words as neighbours."""
    start = sc.initializers.Uniform(-0.5 / dim, 0.5 / dim)
    middle = sc.TableConfig(rows, dim, initializer=start, name="middle")
    neighbour = sc.TableConfig(rows, dim, initializer=sc.initializers.Zeros(), name="neighbour")
    features = {"middle": sc.FeatureConfig(middle), "neighbour": sc.FeatureConfig(neighbour)}
    optimizer = sc.optimizers.Adagrad(learning_rate, preset="fbgemm")
    return sc.ShardedEmbedding(features, optimizer, seed=seed)


def train_step(engine: Any, middles: Array, neighbours: Array, negatives: Array) -> float:
    """Move each middle towards its neighbour and away from its negatives; return the loss."""
    others = np.column_stack([neighbours, negatives])
    lookup = engine.lookup({"middle": middles, "neighbour": others.ravel()})
    middle = lookup.activations["middle"]
    other = lookup.activations["neighbour"].reshape(*others.shape, -1)
    logits = np.einsum("bd,bnd->bn", middle, other)
    logits[:, 0] *= -1  # so that the loss of all is log(1 + exp(logit))
    slopes = np.tanh(logits / 2) / 2 + 0.5
    slopes[:, 0] *= -1
    of_middle = np.einsum("bn,bnd->bd", slopes, other)
    of_other = slopes[:, :, None] * middle[:, None]
    lookup.apply_gradients(
        {"middle": of_middle, "neighbour": of_other.reshape(-1, middle.shape[1])}
    )
    return float(np.logaddexp(0, logits).sum(axis=1).mean())


def train(
    engine: Any, epochs: Iterator[tuple[Array, Array]], counts: Array, draw: np.random.Generator
) -> None:
    """Train on the pairs of each epoch, with 5 negatives each, and print the mean loss."""
    table = alias_table(counts**0.75)
    for number, (middles, neighbours) in enumerate(epochs, 1):
        began, losses = time.perf_counter(), []
        for start in range(0, len(middles), 4096):
            batch = slice(start, start + 4096)
            negatives = sample(table, (len(middles[batch]), 5), draw)
            losses.append(train_step(engine, middles[batch], neighbours[batch], negatives))
        speed = len(middles) / (time.perf_counter() - began)
        first, last = np.mean(losses[:5]), np.mean(losses[-5:])
        print(
            f"epoch {number}: loss {first:.3f} to {last:.3f}, {speed:,.0f} pairs per second",
            flush=True,
        )


# --- neighbours, and files of vectors -------------------------------------------------------------


def nearest(vectors: Array, rows: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` rows of the largest cosine to each of `rows`, and the cosines: exactly."""
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    cosines = directions[rows] @ directions.T
    cosines[np.arange(len(rows)), rows] = -np.inf  # not itself
    order = np.argsort(-cosines, axis=1)[:, :count]
    return order, np.take_along_axis(cosines, order, axis=1)


def save(path: Path, names: list[str], vectors: Array) -> None:
    """Write vectors as the path's suffix says: .npy and names as .txt; .vec; or .arrow."""
    if path.suffix == ".npy":
        np.save(path, vectors)
        path.with_suffix(".txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    elif path.suffix == ".vec":  # word2vec's text format, which gensim and fastText read
        lines = [" ".join([name, *map(str, row)]) for name, row in zip(names, vectors, strict=True)]
        head = f"{len(names)} {vectors.shape[1]}"
        path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    else:
        import pyarrow as pa
        from pyarrow import feather

        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        feather.write_feather(pa.table({"name": names, "vector": lists}), path)


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description="Train vectors of words on the standard library.")
    parser.add_argument("--words", type=int, default=10**9, help="read no more than these")
    parser.add_argument("--least", type=int, default=10, help="leave rarer words out")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--near", default="True,False,encode,decode,min,max")
    parser.add_argument("--save", type=Path, nargs="*", default=[], help=".npy, .vec, .arrow")
    options = parser.parse_args()
    words, counts, ids = as_ids(source_words(options.words), options.least)
    print(f"{len(ids):,} words of the standard library, {len(words):,} different ones")
    draw = np.random.default_rng(options.seed)
    epochs = (
        pairs(subsampled(ids, counts, draw, 1e-3), options.window, draw)
        for _ in range(options.epochs)
    )
    with new_engine(len(words), options.dim, options.learning_rate, options.seed) as engine:
        train(engine, epochs, counts, draw)
        vectors = engine.tables["middle"][:]
    asked = [word for word in options.near.split(",") if word in words]
    rows, cosines = nearest(vectors, np.array([words.index(word) for word in asked]), 5)
    for word, near, how in zip(asked, rows, cosines, strict=True):
        shown = (f"{words[row]} {cosine:.2f}" for row, cosine in zip(near, how, strict=True))
        print(f"{word}: " + ", ".join(shown))
    for path in options.save:
        save(path, words, vectors)


if __name__ == "__main__":
    main()
