"""Walks have node2vec's chances, counted out; nodes of a community are near each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest


@pytest.fixture
def node2vec(imported):
    imported("word2vec")  # which it imports
    return imported("node2vec")


# A triangle 0 1 2, a tail 2 3 4, and a pair of nodes for themselves; there is no node 5.
EDGES = np.array([[0, 1], [1, 2], [2, 0], [3, 2], [3, 4], [6, 7], [7, 6]])
NEIGHBOURS = {0: [1, 2], 1: [0, 2], 2: [0, 1, 3], 3: [2, 4], 4: [3], 5: [], 6: [7], 7: [6]}


def test_edges_go_both_ways_once(node2vec):
    splits, neighbours = node2vec.csr(EDGES)
    found = [neighbours[a:b].tolist() for a, b in itertools.pairwise(splits)]
    assert found == list(NEIGHBOURS.values())


@pytest.mark.parametrize(("p", "q"), [(1, 1), (0.25, 4), (4, 0.5)])
def test_walks_have_the_chances_of_the_paper(node2vec, p, q):
    draw = np.random.default_rng(0)
    copies = 8 * np.arange(2000)
    paths = node2vec.walks(
        node2vec.csr(np.concatenate(EDGES + copies[:, None, None])), 8, p, q, draw
    )
    assert sorted(paths[:, 0]) == sorted((copies[:, None] + [0, 1, 2, 3, 4, 6, 7]).ravel())
    paths %= 8
    seen = np.zeros((8, 8, 8))
    for step in range(2, 8):
        np.add.at(seen, tuple(paths[:, step - 2 : step + 1].T), 1)
    for before, here in itertools.product(range(8), range(8)):
        if here not in NEIGHBOURS[before]:
            assert seen[before, here].sum() == 0
            continue
        weights = np.zeros(8)
        for node in NEIGHBOURS[here]:
            near = node in NEIGHBOURS[before]
            weights[node] = 1 / p if node == before else 1 if near else 1 / q
        times = seen[before, here].sum()
        assert times > 2000
        off = seen[before, here] / times - weights / weights.sum()
        assert abs(off).max() < 5 * 0.5 / times**0.5  # five standard deviations
    firsts = np.array([(paths[paths[:, 0] == 2, 1] == node).mean() for node in (0, 1, 3)])
    assert firsts == pytest.approx(1 / 3, abs=0.06)


def test_pairs_are_of_nodes_near_each_other_on_a_walk(node2vec):
    paths = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    middles, neighbours = node2vec.pairs(paths, 2, np.random.default_rng(0))
    found = set(zip(middles.tolist(), neighbours.tolist(), strict=True))
    one = {(1, 2), (2, 3), (3, 4), (1, 3), (2, 4)}
    both = one | {(a + 4, b + 4) for a, b in one}
    assert found == both | {(b, a) for a, b in both}
    assert len(middles) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("--seed", 0), ("--seed", 1, "--p", 4, "--q", 0.5), ("--seed", 2, "--q", 2)]
)
def test_nodes_are_near_those_of_their_community(run, tmp_path, arguments):
    run(tmp_path, "node2vec.py", "edges.txt", "--generate", 1000)
    edges = np.loadtxt(tmp_path / "edges.txt", dtype=np.int64)
    inside = (edges[:, 0] // 50 == edges[:, 1] // 50).mean()
    assert 0.75 < inside < 0.85  # that is what ends of edges alone would give
    run(tmp_path, "node2vec.py", "edges.txt", "--epochs", 3, *arguments, "--save", "nodes.npy")
    vectors = np.load(tmp_path / "nodes.npy")
    assert vectors.shape == (1000, 32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    near = np.argsort(-cosines, axis=1)[:, :10]
    same = near // 50 == np.arange(1000)[:, None] // 50
    assert same.mean() > 0.95  # measured: 0.98 to 0.99
