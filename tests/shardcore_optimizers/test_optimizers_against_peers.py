"""Presets against the libraries they are named after, where these are installed."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore import optimizers

ROWS, DIM, STEPS = 12, 17, 5


def ours(optimizer, start, gradients):
    rows, slots = start.copy(), optimizer.init(start)
    ids = np.arange(len(start))
    for step, grad in enumerate(gradients, start=1):
        rows, slots = optimizer.update(grad, rows, slots, optimizer.hyper(), step, ids)
    return rows, slots


@pytest.fixture
def numbers():
    rng = np.random.default_rng(9)
    start = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    return start, rng.standard_normal((STEPS, ROWS, DIM)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:::torch", "ignore:::fbgemm_gpu")
@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        ("EXACT_SGD", optimizers.SGD(preset="fbgemm")),
        ("EXACT_ADAGRAD", optimizers.Adagrad(preset="fbgemm")),
        ("EXACT_ROWWISE_ADAGRAD", optimizers.RowwiseAdagrad(preset="fbgemm")),
    ],
)
def test_preset_fbgemm_is_fbgemm_with_its_own_defaults(kind, optimizer, numbers):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("fbgemm_gpu", reason="fbgemm_gpu is not installed")
    from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as training

    start, gradients = numbers
    place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    module = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM + 3, *place)],  # a multiple of four columns, the last ones without gradient
        optimizer=getattr(training.OptimType, kind),
        pooling_mode=common.PoolingMode.SUM,
        stochastic_rounding=False,
    )
    padded = np.pad(start, ((0, 0), (0, 3)))
    table = module.split_embedding_weights()[0]
    table.copy_(torch.tensor(padded))
    gradients = np.pad(gradients, ((0, 0), (0, 0), (0, 3)))
    for grad in gradients:
        module(torch.arange(ROWS), torch.arange(ROWS + 1)).backward(torch.tensor(grad))
    rows, slots = ours(optimizer, padded, gradients)
    np.testing.assert_allclose(rows, table.numpy(), rtol=2e-6, atol=1e-7)
    if slots:
        state = module.split_optimizer_states()[0][0].numpy()
        np.testing.assert_allclose(slots["accumulators"].reshape(state.shape), state, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "optimizer"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9}, optimizers.SGD(0.1, momentum=0.9)),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True},
         optimizers.SGD(0.1, momentum=0.9, nesterov=True)),
        ("SGD", {"lr": 0.1, "weight_decay": 0.2},
         optimizers.SGD(0.1, weight_decay_factor=0.2, decoupled_weight_decay=False)),
        ("Adagrad", {"lr": 0.1, "eps": 1e-10, "initial_accumulator_value": 0.1},
         optimizers.Adagrad(0.1, epsilon=1e-10)),
        ("Adam", {"lr": 0.01, "eps": 1e-8}, optimizers.Adam(preset="fbgemm")),
        ("Adam", {"lr": 0.01, "eps": 1e-8}, optimizers.Adam(0.01, preset="tpu")),
        ("AdamW", {"lr": 0.1, "eps": 1e-7}, optimizers.AdamW(0.1)),
        ("RMSprop", {"lr": 0.1, "alpha": 0.9, "eps": 1e-7}, optimizers.RMSProp(0.1)),
        ("RMSprop", {"lr": 0.1, "alpha": 0.9, "eps": 1e-7, "momentum": 0.5},
         optimizers.RMSProp(0.1, momentum=0.5)),
    ],
)  # fmt: skip
def test_as_torch_on_rows_that_are_all_touched(name, options, optimizer, numbers):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    start, gradients = numbers
    weights = torch.nn.Parameter(torch.tensor(start))
    theirs = getattr(torch.optim, name)([weights], **options)
    for grad in gradients:
        weights.grad = torch.tensor(grad)
        theirs.step()
    rows, _ = ours(optimizer, start, gradients)
    np.testing.assert_allclose(rows, weights.detach().numpy(), rtol=1e-5, atol=2e-6)
