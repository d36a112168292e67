"""Optimizers that are torch's: our module with one of ours, beside torch's own with torch's.

The tolerance is that of float32 arithmetic in another order; SparseAdam adds its epsilon before it
corrects the second moment, so steps differ by epsilon / |g| in parts.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import shardcore as sc  # noqa: E402
import shardcore.torch as st  # noqa: E402

ROWS, DIM, STEPS = 40, 5, 3

PAIRS = {
    "SGD": (
        sc.optimizers.SGD(preset="torch"),
        lambda p: torch.optim.SGD(p),
        True,
    ),
    "SparseAdam": (
        sc.optimizers.Adam(preset="torch"),
        lambda p: torch.optim.SparseAdam(p),
        True,
    ),
    "Adagrad, sparse": (
        sc.optimizers.Adagrad(preset="torch"),
        lambda p: torch.optim.Adagrad(p),
        True,
    ),
    "Adagrad": (
        sc.optimizers.Adagrad(preset="torch"),
        lambda p: torch.optim.Adagrad(p),
        False,
    ),
    "SGD, momentum, of rows that are all touched": (
        sc.optimizers.SGD(0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        None,
    ),
    "RMSprop, of rows that are all touched": (
        sc.optimizers.RMSProp(preset="torch"),
        lambda p: torch.optim.RMSprop(p),
        None,
    ),
    "Adam": (
        sc.optimizers.Adam(preset="torch", lazy_adam=False),
        lambda p: torch.optim.Adam(p),
        False,
    ),
    "AdamW": (
        sc.optimizers.AdamW(preset="torch", lazy_adam=False),
        lambda p: torch.optim.AdamW(p),
        False,
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_three_steps_are_torchs(name, mode, fuzz_seed):
    torch.manual_seed(fuzz_seed)
    ours_optimizer, make, sparse = PAIRS[name]
    weight = torch.randn(ROWS, DIM)
    ours = st.EmbeddingBag(ROWS, DIM, mode=mode, _weight=weight, optimizer=ours_optimizer)
    theirs = torch.nn.EmbeddingBag(
        ROWS, DIM, mode=mode, _weight=weight.clone(), sparse=bool(sparse)
    )
    optimizer = make(list(theirs.parameters()))
    for _ in range(STEPS):
        ids = torch.randint(0, ROWS, (16, 3))
        if sparse is None:
            ids = torch.cat([torch.arange(ROWS)[:, None], torch.randint(0, ROWS, (ROWS, 1))], 1)
        target = torch.randn(len(ids), DIM)
        optimizer.zero_grad()
        for module in (ours, theirs):
            ((module(ids) - target) ** 2).sum().backward()
        optimizer.step()
    rows = torch.from_numpy(ours.engine.tables["embedding"].numpy())
    moved = (rows - weight).abs().max()
    assert moved > 1e-3
    torch.testing.assert_close(rows, theirs.weight.detach(), rtol=2e-5, atol=2e-6)


def test_adam_without_a_preset_is_not_torchs():
    """What docs/torch.md warns of: without correction of its bias the first steps are larger."""
    weight = torch.zeros(4, 2)
    ours = st.EmbeddingBag(4, 2, mode="sum", _weight=weight, optimizer=sc.optimizers.Adam(0.001))
    theirs = torch.nn.EmbeddingBag(4, 2, mode="sum", _weight=weight.clone(), sparse=True)
    optimizer = torch.optim.SparseAdam(list(theirs.parameters()), lr=0.001)
    for module in (ours, theirs):
        module(torch.tensor([[1]])).sum().backward()
    optimizer.step()
    ratio = ours.weight[1, 0].item() / theirs.weight[1, 0].item()
    assert ratio == pytest.approx(0.1 / 0.001**0.5, rel=1e-3)  # (1 - beta_1) / √(1 - beta_2)
