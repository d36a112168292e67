"""What is refused, and in which words."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import shardcore as sc  # noqa: E402
import shardcore.torch as st  # noqa: E402

IDS = torch.tensor([1, 2, 3])
TWO = torch.tensor([[1, 2], [3, 0]])


def bag(**options):
    options = {"mode": "sum", "optimizer": sc.optimizers.SGD(0.5), **options}
    return st.EmbeddingBag(4, 2, **options)


def refused(told, call, *args, kind=sc.ShardcoreError, **options):
    with pytest.raises(kind, match=f"^{re.escape(told)}$"):
        call(*args, **options)


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"mode": "median"}, ValueError, "mode must be 'sum', 'mean' or 'max', got 'median'"),
        (
            {"mode": "max", "scale_grad_by_freq": True},
            ValueError,
            "scale_grad_by_freq must be False with mode='max'",
        ),
        ({"mode": "max", "sparse": True}, ValueError, "sparse must be False with mode='max'"),
        ({"padding_idx": 4}, ValueError, "padding_idx must be in [-4, 4), got 4"),
        ({"padding_idx": -5}, ValueError, "padding_idx must be in [-4, 4), got -5"),
        ({"max_norm": "1"}, TypeError, "max_norm must be a number, got '1'"),
        (
            {"_weight": torch.ones(2, 4)},
            ValueError,
            "_weight must have shape (4, 2), got (2, 4)",
        ),
        ({"_weight": [[1.0]]}, TypeError, "_weight must be a tensor, got list"),
        (
            {"dtype": torch.int64},
            TypeError,
            "dtype must be one of torch.float32, torch.float64, torch.float16, torch.bfloat16, "
            "got torch.int64",
        ),
        (
            {"device": "cuda"},
            ValueError,
            "device must be None or 'cpu', got 'cuda': tables are where backend= has them",
        ),
        ({"update": "later"}, ValueError, "update must be 'backward' or 'step', got 'later'"),
        (
            {"optimizer": "sgd"},
            TypeError,
            "optimizer must be one of shardcore.optimizers, such as shardcore.optimizers.SGD(0.1), "
            "or None, got 'sgd'",
        ),
        (
            {"_freeze": True},
            ValueError,
            "optimizer must be None for tables that are frozen, got SGD(learning_rate=0.5)",
        ),
    ],
)
def test_wrong_arguments_are_named(options, kind, told):
    refused(told, bag, kind=kind, **options)


def test_an_optimizer_of_torchs_is_no_optimizer():
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
    with pytest.raises(sc.ShardcoreError, match=re.escape("optimizer must be one of shardcore.op")):
        bag(optimizer=optimizer)


@pytest.mark.parametrize("kind", ["EmbeddingBag", "Embedding"])
def test_pretrained_rows_have_two_axes(kind):
    call = getattr(st, kind).from_pretrained
    refused("embeddings must be a tensor of rank 2", call, torch.ones(3))


def weights_of(shape):
    return torch.ones(shape)


@pytest.mark.parametrize(
    ("args", "kind", "told"),
    [
        (([1, 2],), TypeError, "input must be a tensor, got list"),
        ((TWO.float(),), TypeError, "input must be int64 or int32, got torch.float32"),
        (
            (TWO.to("meta"),),
            ValueError,
            "input must be on the CPU, got a tensor on 'meta'",
        ),
        (
            (IDS,),
            ValueError,
            "offsets must be given where input has rank 1: they say where each bag begins",
        ),
        (
            (TWO, IDS),
            ValueError,
            "offsets must be None where input has rank 2: its rows are the bags",
        ),
        (
            (TWO, torch.tensor([0, 2])),  # which would do for ids of one axis
            ValueError,
            "offsets must be None where input has rank 2: its rows are the bags",
        ),
        ((TWO[None],), ValueError, "input must be of rank 1 or 2, got shape (1, 2, 2)"),
        ((IDS, torch.tensor([[0]])), ValueError, "offsets must be of rank 1, got shape (1, 1)"),
        ((IDS, torch.tensor([1])), ValueError, "offsets must begin with 0, got 1"),
        (
            (IDS, torch.tensor([], dtype=torch.int64)),
            ValueError,
            "offsets must begin with 0, got none",
        ),
        (
            (IDS, torch.tensor([0, 2, 1])),
            ValueError,
            "offsets must not decrease, got 1 after 2 at position 2",
        ),
        (
            (IDS, torch.tensor([0, 4])),
            ValueError,
            "offsets[1] must be at most the number of ids in input, 3, got 4",
        ),
        (
            (IDS, torch.tensor([0.0])),
            TypeError,
            "offsets must be int64 or int32, got torch.float32",
        ),
        (
            (TWO + 2,),
            IndexError,
            "input: ids[0, 1] = 4 is outside table 'embedding': must be in [0, 4)",
        ),
        (
            (-TWO,),
            IndexError,
            "input: ids[0, 0] = -1 is outside table 'embedding': must be in [0, 4)",
        ),
        (
            (TWO, None, IDS),
            TypeError,
            "per_sample_weights must be a tensor of floats, got torch.int64",
        ),
        (
            (TWO, None, weights_of((2, 3))),
            ValueError,
            "per_sample_weights must have the shape of input, (2, 2), got (2, 3)",
        ),
        (
            (TWO, None, weights_of((2, 2)) * torch.inf),
            ValueError,
            "per_sample_weights: weights must be finite, got inf at position 0",
        ),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_wrong_calls_are_named_and_change_nothing(args, kind, told, training):
    module = bag().train(training)
    refused(told, module, *args, kind=kind)
    assert (module.engine.step, module.engine.in_flight) == (0, 0)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"max_norm": 1.0}, {"mode": "max"}])
def test_an_id_outside_is_named_where_it_stands(options):
    told = "input: ids[1, 1] = 7 is outside table 'embedding': must be in [0, 4)"
    ids = torch.tensor([[1, 2], [1, 7]])
    refused(told, bag(**options), ids, kind=IndexError)
    if options.pop("mode", None) is None:
        refused(told, st.Embedding(4, 2, **options), ids, kind=IndexError)


def test_the_last_offset_is_the_number_of_ids():
    told = "offsets must end with the number of ids in input, 3, got 2"
    refused(told, bag(include_last_offset=True), IDS, torch.tensor([0, 2]))
    told = "offsets must end with the number of ids in input, 3, got none"
    refused(told, bag(include_last_offset=True), IDS, torch.tensor([], dtype=torch.int64))


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_weights_are_of_sums(mode):
    told = f"per_sample_weights must be None with mode={mode!r}: only mode='sum' takes them"
    refused(told, bag(mode=mode), TWO, None, torch.ones(2, 2))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_input_is_jagged_and_comes_alone():
    strided = torch.nested.nested_tensor([IDS.float()]).long()
    told = (
        "input must be a nested tensor of rank 2 with layout=torch.jagged, got rank 2 and "
        "torch.strided"
    )
    refused(told, bag(), strided)
    refused(told, st.Embedding(4, 2), strided)
    jagged = torch.nested.nested_tensor([IDS], layout=torch.jagged)
    refused("offsets must be None where input is a nested tensor", bag(), jagged, IDS)
    told = "per_sample_weights must be nested where input is"
    refused(told, bag(), jagged, None, torch.ones(3))
    two = torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 1, 3]))
    told = "per_sample_weights must have the bags of input, of lengths [3], got [1, 2]"
    refused(told, bag(), jagged, None, two)
    strided = torch.nested.nested_tensor([torch.ones(3)])
    told = (
        "per_sample_weights must be a nested tensor of rank 2 with layout=torch.jagged, got rank 2 "
        "and torch.strided"
    )
    refused(told, bag(), jagged, None, strided)


def test_tensors_without_values_are_refused():
    told = (
        "input must have values that NumPy can read, got a tensor without, as torch.func's vmap "
        "and grad have, or of a sparse layout"
    )
    refused(told, torch.func.vmap(bag()), IDS[None, None])
    refused(told, bag(), IDS[None].to_sparse())
    weigh = torch.func.grad(lambda weights: bag()(IDS[None], None, weights).sum())
    refused(told, weigh, torch.ones(1, 3))


def test_gradients_must_be_finite():
    module = bag()
    out = module(TWO)
    told = "gradients must be finite in float32: gradients[0, 0] = nan"
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        out.backward(torch.full((2, 2), torch.nan))
    assert module.engine.step == 0
