"""What torch's autograd makes of a lookup: updates, steps, and gradients of weights."""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import shardcore as sc  # noqa: E402
import shardcore.torch as st  # noqa: E402

IDS = torch.tensor([[1, 2], [2, 4]])


def bag(**options):
    options = {"mode": "sum", "optimizer": sc.optimizers.SGD(0.5), **options}
    return st.EmbeddingBag(6, 2, _weight=torch.ones(6, 2), **options)


def column(module):
    return module.engine.tables["embedding"][:, 0].tolist()


def test_backward_updates_once():
    module = bag()
    out = module(IDS)
    assert module.engine.in_flight == 1
    out.sum().backward()
    assert column(module) == [1, 0.5, 0, 1, 0.5, 1]
    assert (module.engine.step, module.engine.in_flight) == (1, 0)
    module.step()
    assert (column(module), module.engine.step) == ([1, 0.5, 0, 1, 0.5, 1], 1)


def test_step_sums_what_came_backward():
    module = bag(update="step")
    for part in (IDS[:1], IDS[1:]):
        module(part).sum().backward()
    assert column(module) == [1] * 6
    assert module.engine.in_flight == 2
    module.step()
    assert column(module) == [1, 0.5, 0, 1, 0.5, 1]
    assert (module.engine.step, module.engine.in_flight) == (1, 0)
    module.step()
    assert module.engine.step == 1


def test_step_keeps_gradients_of_its_own():
    module = bag(update="step")
    gradient = torch.ones(2, 2)
    module(IDS).backward(gradient)
    gradient.fill_(100)
    module.step()
    assert column(module) == [1, 0.5, 0, 1, 0.5, 1]


def test_backward_twice_over_one_graph_adds_up_with_step_and_raises_without():
    module = bag(update="step")
    out = module(IDS)
    out.sum().backward(retain_graph=True)
    (2 * out).sum().backward()
    module.step()
    assert column(module) == [1, -0.5, -2, 1, -0.5, 1]
    module = bag()
    out = module(IDS)
    out.sum().backward(retain_graph=True)
    told = "apply_gradients came a second time for one lookup: look the batch up again"
    with pytest.raises(sc.ShardcoreError, match=re.escape(told)):
        out.sum().backward()
    assert module.engine.step == 1


def test_zero_grad_drops_what_waits_for_a_step():
    module = bag(update="step")
    module(IDS).sum().backward()
    module.zero_grad()
    assert module.engine.in_flight == 0
    module.step()
    assert module.engine.step == 0


def test_a_step_that_fails_keeps_its_gradients():
    module = bag(update="step")
    module(IDS).backward(torch.full((2, 2), torch.nan))
    with pytest.raises(sc.ShardcoreError, match=re.escape("pairs[0]: gradients must be finite")):
        module.step()
    assert (module.engine.step, module.engine.in_flight) == (0, 1)


def test_a_forward_that_leads_nowhere_goes_at_once():
    module = bag()
    gc.disable()
    try:
        out = module(IDS)
        assert module.engine.in_flight == 1
        del out
        assert module.engine.in_flight == 0
    finally:
        gc.enable()


def test_two_towers_over_one_module():
    module = bag()
    query, item = module(IDS), module(torch.tensor([[5], [5]]))
    (query * item).sum().backward()
    assert module.engine.step == 2
    assert module.engine.in_flight == 0


def test_recomputed_forwards_update_once():
    from torch.utils.checkpoint import checkpoint

    module, weights = bag(), torch.ones(2, 2, requires_grad=True)
    out = checkpoint(lambda x: module(IDS) * x, weights, use_reentrant=False)
    out.sum().backward()
    assert (module.engine.step, module.engine.in_flight) == (1, 0)
    assert column(module) == [1, 0.5, 0, 1, 0.5, 1]


@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "eval", "frozen"])
def test_without_training_nothing_is_kept(how, monkeypatch):
    monkeypatch.delattr(sc.ShardedEmbedding, "lookup")  # which makes a handle
    module = bag(_freeze=True, optimizer=None) if how == "frozen" else bag()
    if how == "eval":
        module.eval()
    if how in ("no_grad", "inference_mode"):
        with getattr(torch, how)():
            out = module(IDS)
            assert module.engine.in_flight == 0
    else:
        out = module(IDS)
    assert module.engine.in_flight == 0
    assert not out.requires_grad


def test_backward_without_an_optimizer_names_the_argument():
    module = bag(optimizer=None)
    out = module(IDS)
    told = (
        "backward came to EmbeddingBag without an optimizer: give it optimizer=, such as "
        "optimizer=shardcore.optimizers.SGD(0.1), or freeze it, with _freeze=True"
    )
    with pytest.raises(sc.ShardcoreError, match=re.escape(told)):
        out.sum().backward()
    assert column(module) == [1] * 6


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("form", ["two axes", "offsets", "padding"])
def test_gradients_of_weights_are_those_of_numbers(form, frozen):
    torch.manual_seed(0)
    rows = torch.randn(6, 3, dtype=torch.float64)
    module = st.EmbeddingBag(
        6, 3, mode="sum", _weight=rows, padding_idx=2 if form == "padding" else None,
        optimizer=None if frozen else sc.optimizers.SGD(0.5), _freeze=frozen,
    )  # fmt: skip
    ids, offsets = IDS, None
    if form == "offsets":
        ids, offsets = torch.tensor([1, 2, 2, 4, 0]), torch.tensor([0, 0, 3])
    weights = torch.randn(ids.shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: module(ids, offsets, x), [weights])
    assert torch.equal(torch.from_numpy(module.engine.tables["embedding"].numpy()), rows)


def test_gradients_asked_of_other_tensors_update_nothing():
    module, weights = bag(), torch.ones(2, 2, requires_grad=True)
    scale = torch.ones(2, requires_grad=True)
    out = (module(IDS, per_sample_weights=weights) * scale).sum()
    for _ in range(2):
        of_weights, of_scale = torch.autograd.grad(out, [weights, scale], retain_graph=True)
        assert of_weights.tolist() == [[2, 2], [2, 2]]
        assert of_scale.tolist() == [4, 4]
    assert (column(module), module.engine.in_flight) == ([1] * 6, 1)
    out.backward()
    assert column(module) == [1, 0.5, 0, 1, 0.5, 1]


@pytest.mark.parametrize("update", ["backward", "step"])
def test_gradients_of_weights_are_of_the_rows_before_the_update(update):
    module = bag(update=update)
    weights = torch.full((2, 2), 2.0, requires_grad=True)
    (3 * module(IDS, per_sample_weights=weights)).sum().backward()
    assert weights.grad.tolist() == [[6, 6], [6, 6]]
    module.step()
    assert column(module) == [1, -2, -5, 1, -2, 1]


def test_a_caller_may_use_ids_and_weights_again_before_backward():
    module = bag()
    module.engine.tables["embedding"][2] = 3
    ids, weights = IDS.clone(), torch.full((2, 2), 2.0, requires_grad=True)
    out = module(ids, per_sample_weights=weights)
    ids.fill_(5)
    with torch.no_grad():
        weights.fill_(100)
    out.sum().backward()
    assert column(module) == [1, 0, 1, 1, 0, 1]
    assert weights.grad.tolist() == [[2, 6], [6, 2]]


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "Embedding"])
def test_a_padding_row_is_not_touched(mode):
    """Not by weight decay either, which moves rows that are named, whatever their gradient."""
    optimizer = sc.optimizers.SGD(0.5, weight_decay_factor=0.5)
    if mode == "Embedding":
        module = st.Embedding(6, 2, 2, _weight=torch.ones(6, 2), optimizer=optimizer)
    else:
        module = bag(mode=mode, padding_idx=2, optimizer=optimizer)
    module(IDS).sum().backward()
    assert column(module)[2] == 1
    assert column(module)[1] != 1
    assert module.engine.metrics()["unique_rows"] == 2


def test_gradients_that_are_views_are_taken():
    module = bag()
    module(IDS).backward(torch.ones(1, 1).expand(2, 2))
    module(IDS).backward(torch.ones(2, 2).T)
    module(IDS).backward(torch.ones(4, 4)[::2, ::2])
    assert column(module) == [1, -0.5, -2, 1, -0.5, 1]


def test_activations_share_the_memory_of_the_engines(monkeypatch):
    module = bag()
    seen = []
    lookup = sc.ShardedEmbedding.lookup

    def spy(self, *args, **options):
        found = lookup(self, *args, **options)
        seen.append(found.activations)
        return found

    monkeypatch.setattr(sc.ShardedEmbedding, "lookup", spy)
    out = module(IDS)
    assert np.shares_memory(out.detach().numpy(), seen[0])


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_backends_are_taken_by_name(backend):
    module = bag(backend=backend)
    module(IDS).sum().backward()
    assert column(module) == [1, 0.5, 0, 1, 0.5, 1]


def test_a_backend_of_ones_own_is_taken():
    module = bag(backend=sc.get_backend("sim", hosts=3))
    module(IDS).sum().backward()
    assert column(module) == [1, 0.5, 0, 1, 0.5, 1]


def test_a_model_trains_beside_torchs_optimizer():
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        st.EmbeddingBag(50, 4, mode="sum", optimizer=sc.optimizers.Adagrad(0.1)),
        torch.nn.Linear(4, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    assert len(list(model.parameters())) == 2
    ids = torch.randint(0, 50, (64, 3))
    target = (ids % 2).float().sum(1, keepdim=True)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = ((model(ids) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5
    assert model[0].engine.step == 60
