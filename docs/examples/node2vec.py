"""Vectors of a graph's nodes: random walks (node2vec), learnt as sentences are in ``word2vec.py``.

A graph is a text file, an edge on each line: two nodes, numbered from 0.

    python docs/examples/node2vec.py --generate 2000 edges.txt
    python docs/examples/node2vec.py edges.txt --p 1 --q 0.5 --near 0,1 --save nodes.npy

It needs NumPy alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import word2vec
from numpy.typing import NDArray

Array = NDArray[Any]


def csr(edges: Array) -> tuple[Array, Array]:
    """Return (row_splits, neighbours) of an undirected graph: each node's neighbours, ascending."""
    both = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
    degrees = np.bincount(both[:, 0], minlength=int(edges.max()) + 1)
    return np.concatenate([[0], np.cumsum(degrees)]), both[:, 1].copy()


def walks(
    graph: tuple[Array, Array], length: int, p: float, q: float, draw: np.random.Generator
) -> Array:
    """Return a walk from every node that has an edge, one per row.

    From a node that was reached from `before`, a neighbour is proposed at random, and accepted in
    proportion to 1/p if it is `before`, 1 if it is a neighbour of `before`, else 1/q. Walkers whose
    proposal was refused propose again: all at once, and no table per edge is needed.
    """
    splits, neighbours = graph
    degrees = np.diff(splits)
    nodes = len(degrees)
    # As both are ascending, so are these numbers of edges: a binary search finds an edge.
    edges = np.repeat(np.arange(nodes), degrees) * nodes + neighbours
    likeliest = max(1 / p, 1, 1 / q)

    path = np.empty((np.count_nonzero(degrees), length), np.int64)
    path[:, 0] = draw.permutation(np.flatnonzero(degrees))
    for step in range(1, length):
        waiting = np.arange(len(path))
        while len(waiting):
            here = path[waiting, step - 1]
            proposed = neighbours[splits[here] + draw.integers(0, degrees[here])]
            if step > 1:
                before = path[waiting, step - 2]
                wanted = before * nodes + proposed
                place = np.searchsorted(edges, wanted).clip(max=len(edges) - 1)
                weight = np.where(edges[place] == wanted, 1, 1 / q)
                weight = np.where(proposed == before, 1 / p, weight)
                accepted = draw.random(len(waiting)) * likeliest < weight
            else:
                accepted = np.ones(len(waiting), bool)
            path[waiting[accepted], step] = proposed[accepted]
            waiting = waiting[~accepted]
    return path


def pairs(paths: Array, window: int, draw: np.random.Generator) -> tuple[Array, Array]:
    """Return (middles, neighbours) of nodes at most `window` steps apart, shuffled."""
    near = [(paths[:, :-n].ravel(), paths[:, n:].ravel()) for n in range(1, window + 1)]
    middles = np.concatenate([one for left, right in near for one in (left, right)])
    neighbours = np.concatenate([one for left, right in near for one in (right, left)])
    order = draw.permutation(len(middles))
    return middles[order], neighbours[order]


def generate(path: Path, nodes: int, seed: int = 0) -> None:
    """Write a graph of communities of 50: node n is in n // 50, and so are most at its edges."""
    draw = np.random.default_rng(seed)
    start = np.repeat(np.arange(nodes), 6)
    inside = np.minimum(start // 50 * 50 + draw.integers(0, 50, len(start)), nodes - 1)
    end = np.where(draw.random(len(start)) < 0.8, inside, draw.integers(0, nodes, len(start)))
    np.savetxt(path, np.column_stack([start, end])[start != end], fmt="%d")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description="Train vectors of the nodes of a graph.")
    parser.add_argument("file", type=Path, help="edges, one per line: two nodes")
    parser.add_argument("--generate", type=int, metavar="NODES", help="write the file instead")
    parser.add_argument("--p", type=float, default=1.0, help="large: walks seldom turn back")
    parser.add_argument("--q", type=float, default=1.0, help="small: walks go further away")
    parser.add_argument("--length", type=int, default=20, help="nodes of a walk")
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5, help="walks from each node")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--near", default="0,1", help="show nodes near these")
    parser.add_argument("--save", type=Path, nargs="*", default=[], help=".npy, .vec, .arrow")
    options = parser.parse_args()
    if options.generate:
        generate(options.file, options.generate)
        return
    graph = csr(np.loadtxt(options.file, dtype=np.int64, ndmin=2))
    degrees = np.diff(graph[0])
    print(f"{len(degrees):,} nodes, {len(graph[1]) // 2:,} edges")
    draw = np.random.default_rng(options.seed)
    epochs = (
        pairs(walks(graph, options.length, options.p, options.q, draw), options.window, draw)
        for _ in range(options.epochs)
    )
    with word2vec.new_engine(
        len(degrees), options.dim, options.learning_rate, options.seed
    ) as engine:
        word2vec.train(engine, epochs, degrees, draw)
        vectors = engine.tables["middle"][:]
    asked = [int(node) for node in options.near.split(",")]
    rows, _ = word2vec.nearest(vectors, np.array(asked), 8)
    for node, near in zip(asked, rows, strict=True):
        print(f"{node}: {', '.join(map(str, near))}")
    for path in options.save:
        word2vec.save(path, [str(node) for node in range(len(vectors))], vectors)


if __name__ == "__main__":
    main()
