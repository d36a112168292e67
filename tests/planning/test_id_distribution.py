"""The laws of made-up ids: each gives rows, and as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore.planning.id_distribution import _REUSE, IdDistribution


@pytest.mark.parametrize("law", ["uniform", "zipf:0", "zipf:1", "zipf:1.2", "reuse:2021"])
@pytest.mark.parametrize("rows", [1, 2, 7, 10**9])
def test_ids_are_rows(law, rows):
    ids = IdDistribution(law).draw(np.random.default_rng(0), 1000, rows)
    assert ids.shape == (1000,)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < rows
    again = IdDistribution(law).draw(np.random.default_rng(0), 1000, rows)
    np.testing.assert_array_equal(ids, again)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
def test_zipf_ids_follow_their_law(exponent):
    rows, count = 1000, 400_000
    ids = IdDistribution(f"zipf:{exponent}").draw(np.random.default_rng(1), count, rows)
    shares = np.sort(np.bincount(ids, minlength=rows))[::-1] / count
    edges = np.arange(1, rows + 2, dtype=float)
    power = 1 - exponent
    mass = np.log(edges) if exponent == 1.0 else (edges**power - 1) / power
    law = np.diff(mass) / mass[-1]
    np.testing.assert_allclose(shares[:10], law[:10], rtol=0.05)
    assert np.abs(shares - law).sum() < 0.05
    hottest = np.argsort(np.bincount(ids, minlength=rows))[::-1][:10]
    assert (np.abs(np.diff(hottest)) > 1).all()  # scattered


@pytest.mark.parametrize("law", ["zipf:1", "zipf:1.2", "reuse:2021", "reuse:2022"])
def test_ids_by_rank_are_the_same_rows_the_hottest_first(law):
    rows, count = 100_000, 50_000
    drawn = [
        IdDistribution(law).draw(np.random.default_rng(0), count, rows, by_rank)
        for by_rank in (False, True)
    ]
    scattered, ranked = (np.unique(ids, return_counts=True) for ids in drawn)
    np.testing.assert_array_equal(np.sort(scattered[1]), np.sort(ranked[1]))
    tenth = np.sort(ranked[1])[::-1][: ranked[1].size // 10].sum()
    low = ranked[0] <= np.quantile(ranked[0], 0.15)
    assert ranked[1][low].sum() > 0.9 * tenth


def test_uniform_ids_have_no_ranks():
    given = [
        IdDistribution("uniform").draw(np.random.default_rng(0), 99, 77, by_rank)
        for by_rank in (False, True)
    ]
    np.testing.assert_array_equal(*given)
    assert not IdDistribution("uniform").ranked
    assert IdDistribution("zipf:1.05").ranked


@pytest.mark.parametrize("year", ["2021", "2022"])
def test_reused_ids_are_named_as_often_as_published(year):
    count = 1 << 20
    ids = IdDistribution(f"reuse:{year}").draw(np.random.default_rng(2), count, 10**9)
    times = np.bincount(np.unique(ids, return_inverse=True)[1])
    bins = np.ceil(np.log2(times)).astype(int)
    found = np.bincount(bins, weights=times, minlength=17) / count
    np.testing.assert_allclose(found[:14], _REUSE[year][:14], atol=0.01)
