"""Words of real text find words of their kind; the parts do what their names say, counted out."""

from __future__ import annotations

import re

import numpy as np
import pytest

import shardcore as sc

FACTS = [("True", "False"), ("encode", "decode"), ("min", "max")]
"""Nearest to each other with seeds 0 to 4 on Python 3.11, and on 3.12 and 3.13."""


@pytest.fixture
def word2vec(imported):
    return imported("word2vec")


# --- text -----------------------------------------------------------------------------------------


def test_words_are_numbered_by_frequency(word2vec):
    words, counts, ids = word2vec.as_ids(["to", "be", "or", "not", "to", "be", "to", "do"], 2)
    assert words == ["to", "be"]
    assert counts.tolist() == [3, 2]
    assert ids.tolist() == [0, 1, 0, 1, 0]


def test_the_text_is_that_of_the_standard_library(word2vec):
    words = word2vec.source_words(200_000)
    assert len(words) == 200_000
    assert {"self", "def", "return", "True", "import"} <= set(words)
    assert all(word.isidentifier() for word in set(words))


def test_frequent_words_are_left_out_as_often_as_the_formula_says(word2vec):
    counts = np.array([90_000, 9_900, 100])
    ids = np.repeat(np.arange(3), counts)
    kept = word2vec.subsampled(ids, counts, np.random.default_rng(0), 1e-3)
    left = np.bincount(kept, minlength=3)
    expected = counts * np.sqrt(1e-3 / (counts / 100_000))
    assert left[2] == 100  # not above the threshold
    assert abs(left[:2] / expected[:2] - 1).max() < 0.15  # five standard deviations


def test_pairs_are_those_of_windows(word2vec):
    ids = np.arange(10_000)
    middles, neighbours = word2vec.pairs(ids, 4, np.random.default_rng(0))
    assert len(np.unique(middles * 10_000 + neighbours)) == len(middles)
    assert (np.diff(middles) < 0).any()  # shuffled
    distances = abs(middles - neighbours)
    assert distances.min() == 1
    count = np.bincount(distances)
    assert len(count) == 5
    assert count[1] == 2 * (len(ids) - 1)
    assert count[1:] / count[1] == pytest.approx([1, 3 / 4, 2 / 4, 1 / 4], abs=0.03)
    # A window is as wide to the left as to the right, but at the ends of the text.
    inner = (middles >= 4) & (middles < len(ids) - 4)
    each = np.bincount(middles[inner], minlength=len(ids))[4:-4]
    assert set(each) == {2, 4, 6, 8}


# --- the sampler ----------------------------------------------------------------------------------

DRAW = np.random.default_rng(0)
WEIGHTS = {
    "one": np.array([3.0]),
    "one of all": np.array([0.0, 5.0, 0.0]),
    "equal, and a sum that is rounded": np.full(12, 0.1),
    "some are the mean": np.array([0.0, 1.0, 1.0, 2.0, 1.0]),
    "debts end where others begin": np.array([2.0, 0.0, 2.0, 0.0]),
    "random": DRAW.random(1000),
    "few are nearly all": DRAW.pareto(0.5, 10_000),
    "words": (1 / np.arange(1, 50_001)) ** 0.75,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_alias_table_holds_the_weights(word2vec, name):
    weights = WEIGHTS[name]
    threshold, alias = word2vec.alias_table(weights)
    assert threshold.min() >= 0
    assert threshold.max() <= 1
    chances = threshold + np.bincount(alias, 1 - threshold, len(weights))
    np.testing.assert_allclose(chances / len(weights), weights / weights.sum(), atol=1e-13)


def test_samples_come_as_often_as_they_weigh(word2vec):
    weights = np.arange(10.0)
    table = word2vec.alias_table(weights)
    drawn = word2vec.sample(table, (100_000, 2), np.random.default_rng(0))
    assert drawn.shape == (100_000, 2)
    share = np.bincount(drawn.ravel(), minlength=10) / drawn.size
    assert share[0] == 0
    assert share == pytest.approx(weights / 45, abs=0.005)  # five standard deviations


def test_negatives_are_drawn_by_a_power_of_the_counts(word2vec, monkeypatch):
    seen = []
    monkeypatch.setattr(word2vec, "alias_table", seen.append)
    word2vec.train(None, iter([]), np.array([16, 81]), None)
    assert seen[0] == pytest.approx([8, 27])


# --- training -------------------------------------------------------------------------------------


def test_a_step_goes_down_the_slope_of_the_loss(word2vec):
    draw = np.random.default_rng(0)
    features = {
        name: sc.FeatureConfig(
            sc.TableConfig(7, 3, initializer=draw.normal(size=(7, 3)), dtype="float64", name=name)
        )
        for name in ("middle", "neighbour")
    }
    engine = sc.ShardedEmbedding(features, sc.optimizers.SGD(learning_rate=1.0))
    engine.build()
    before = {name: table[:] for name, table in engine.tables.items()}
    middles, neighbours = np.array([0, 1, 0]), np.array([2, 2, 5])
    negatives = np.array([[3, 6], [2, 0], [4, 4]])

    def loss(middle, neighbour):
        """Return the loss of the paper, term by term."""
        total = 0.0
        for m, n, others in zip(middles, neighbours, negatives, strict=True):
            total += np.log1p(np.exp(-middle[m] @ neighbour[n]))
            total += sum(np.log1p(np.exp(middle[m] @ neighbour[x])) for x in others)
        return total

    found = word2vec.train_step(engine, middles, neighbours, negatives)
    assert found == pytest.approx(loss(**before) / 3, rel=1e-6)
    for name, table in before.items():
        gradient = np.zeros_like(table)
        for place in np.ndindex(table.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = {**before, name: table.copy()}
                moved[name][place] += step
                sides.append(loss(**moved))
            gradient[place] = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose(table - engine.tables[name][:], gradient, atol=1e-6)


def facts_in(printed):
    """Return {word: words near it} of what is printed, and the last loss."""
    near = dict(line.split(": ", 1) for line in printed if re.match(r"\w+: ", line))
    near = {word: re.findall(r"(\w+) -?[\d.]+", text) for word, text in near.items()}
    losses = [re.search(r"loss ([\d.]+) to ([\d.]+)", line) for line in printed]
    return near, [(float(one[1]), float(one[2])) for one in losses if one]


def assert_learnt(printed):
    near, losses = facts_in(printed)
    assert losses[0][0] < 6 * np.log(2)  # of six logits of 0
    assert losses[-1][1] < 2.4  # measured: 2.00 to 2.03
    for one, other in FACTS:
        assert other in near[one][:3]
        assert one in near[other][:3]


@pytest.mark.slow
def test_the_page_shows_what_is_printed(commands):
    for shown, printed in commands("word2vec.md"):
        assert len(shown) == len(printed)
        for one, other in zip(shown, printed, strict=True):
            # The words are those of the Python that runs it, and so are all figures.
            assert one.split(" ")[0] == other.split(" ")[0] or one[0].isdigit()
        if "epoch" in "".join(shown) and "True: " in "".join(shown):
            assert_learnt(printed)
            assert_learnt(shown)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_find_the_same(run, tmp_path, seed):
    arguments = ("--words", 300_000, "--epochs", 2, "--seed", seed)
    assert_learnt(run(tmp_path, "word2vec.py", *arguments).splitlines())


# --- neighbours and files -------------------------------------------------------------------------

VECTORS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
NAMES = [f"word_{n}" for n in range(40)]


def test_nearest_is_exact(word2vec):
    rows, cosines = word2vec.nearest(VECTORS, np.array([7, 0]), 5)
    for row, found, theirs in zip([7, 0], rows, cosines, strict=True):
        exact = [
            (v @ VECTORS[row] / np.linalg.norm(v) / np.linalg.norm(VECTORS[row]), n)
            for n, v in enumerate(VECTORS)
            if n != row
        ]
        best = sorted(exact, reverse=True)[:5]
        assert found.tolist() == [n for _, n in best]
        assert theirs == pytest.approx([c for c, _ in best], abs=1e-6)


def test_npy_and_names_are_read_again(word2vec, tmp_path):
    word2vec.save(tmp_path / "v.npy", NAMES, VECTORS)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), VECTORS)
    assert (tmp_path / "v.txt").read_text().splitlines() == NAMES


def test_text_is_that_of_word2vec(word2vec, tmp_path):
    word2vec.save(tmp_path / "v.vec", NAMES, VECTORS)
    head, *lines = (tmp_path / "v.vec").read_text().splitlines()
    assert head == "40 6"
    assert [line.split(" ")[0] for line in lines] == NAMES
    read = np.array([line.split(" ")[1:] for line in lines], np.float32)
    np.testing.assert_array_equal(read, VECTORS)


def test_arrow_is_read_again(word2vec, tmp_path):
    feather = pytest.importorskip("pyarrow.feather", reason="pyarrow is not installed")
    word2vec.save(tmp_path / "v.arrow", NAMES, VECTORS)
    table = feather.read_table(tmp_path / "v.arrow")
    assert table["name"].to_pylist() == NAMES
    assert str(table["vector"].type).endswith("[6]")
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), VECTORS)


def test_the_page_shows_the_program(excerpts, script):
    found = excerpts("word2vec.md")
    assert {name for name, _ in found} == {"word2vec.py", "node2vec.py"}
    for name, excerpt in found:
        assert excerpt in script(name).read_text(encoding="utf-8")
