"""Our modules and torch's of the same name, side by side, over what torch documents of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import shardcore as sc  # noqa: E402
import shardcore.torch as st  # noqa: E402

CASES = 80
DTYPES = {torch.float32: 2e-6, torch.float64: 1e-13}


def pair(kind, options, rows, dim, dtype, weight, learning_rate):
    ours = getattr(st, kind)(
        rows, dim, _weight=weight, optimizer=sc.optimizers.SGD(learning_rate), **options
    )
    theirs = getattr(torch.nn, kind)(rows, dim, _weight=weight.clone(), **options)
    return ours, theirs, torch.optim.SGD(theirs.parameters(), lr=learning_rate)


def close(ours, theirs, dtype):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    tolerance = DTYPES[dtype]
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=10 * tolerance, atol=tolerance)


def table_of(module):
    return torch.from_numpy(module.engine.tables["embedding"].numpy())


def options_of(rng, rows, kind):
    options = {}
    if rng.random() < 0.5:
        options["padding_idx"] = rng.choice([0, rows - 1, rng.randrange(rows), -1, -rows])
    if rng.random() < 0.3:
        options |= {"max_norm": rng.choice([0.5, 2.0]), "norm_type": rng.choice([1.0, 2.0, 3.0])}
    if kind == "EmbeddingBag":
        options["mode"] = rng.choice(["sum", "mean", "max"])
        options["include_last_offset"] = rng.random() < 0.5
    elif rng.random() < 0.3:  # of bags, in a test of their own
        options["scale_grad_by_freq"] = True
    return options


def call_of(rng, options, rows, dtype):
    """Return positional and keyword arguments of a call of EmbeddingBag, the weights apart."""
    ids_type = rng.choice([torch.int64, torch.int32])
    bags = rng.randrange(6)
    if rng.random() < 0.4 and bags:
        ids = torch.randint(0, rows, (bags, rng.randrange(1, 5)), dtype=ids_type)
        args = [ids]
    else:
        lengths = [rng.choice([0, 1, 1, 2, 5]) for _ in range(bags)]
        ends = np.cumsum([0, *lengths])
        ids = torch.randint(0, rows, (int(ends[-1]),), dtype=ids_type)
        offsets = ends if options["include_last_offset"] else ends[:-1]
        args = [ids, torch.tensor(offsets, dtype=ids_type)]
    if options["mode"] == "sum" and rng.random() < 0.6:
        args += [None] * (2 - len(args))
        args.append(torch.randn(ids.shape, dtype=dtype))
    return args


def show(case, **what):
    print(f"case {case}:", what)  # pytest shows it where the case fails


def test_embedding_bag_is_torchs(fuzz_seed):
    rng = random.Random(fuzz_seed)
    torch.manual_seed(fuzz_seed)
    for case in range(CASES):
        rows, dim, dtype = rng.randrange(2, 9), rng.randrange(1, 6), rng.choice([*DTYPES])
        options = options_of(rng, rows, "EmbeddingBag")
        weight = torch.randn(rows, dim, dtype=dtype)
        if rng.random() < 0.3:
            weight = weight.round()  # ties, for max
        ours, theirs, optimizer = pair("EmbeddingBag", options, rows, dim, dtype, weight, 0.5)
        for _ in range(3):
            args = call_of(rng, options, rows, dtype)
            show(case, rows=rows, dim=dim, dtype=dtype, options=options, args=args)
            weights = [None, None]
            found = []
            for at, module in enumerate((ours, theirs)):
                own = list(args)
                if len(own) == 3:
                    own[2] = weights[at] = args[2].clone().requires_grad_()
                found.append(module(*own))
            close(found[0], found[1], dtype)
            gradient = torch.randn_like(found[1])
            optimizer.zero_grad()
            for out in found:
                out.backward(gradient)
            optimizer.step()
            close(table_of(ours), theirs.weight, dtype)
            if weights[0] is not None:
                close(weights[0].grad, weights[1].grad, dtype)
            with torch.no_grad():
                close(ours(*args), theirs(*args), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_cut_to_max_norm_bit_for_bit_as_torchs_are(dtype, fuzz_seed):
    """Of one column, so that the norm has no sum: a `max` over them sees ties as torch does."""
    torch.manual_seed(fuzz_seed)
    weight = torch.randn(1000, 1, dtype=dtype)
    options = {"max_norm": 0.5, "mode": "max"}
    ours, theirs, _ = pair("EmbeddingBag", options, 1000, 1, dtype, weight, 0.5)
    ids = torch.arange(1000).reshape(10, 100)
    assert torch.equal(ours(ids), theirs(ids))
    assert torch.equal(table_of(ours), theirs.weight)


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
def test_gradients_of_bags_are_divided_by_how_often_a_row_is_named(mode, weighted, fuzz_seed):
    """Beside torch's Embedding: its EmbeddingBag (2.13) divides by the count of another id."""
    torch.manual_seed(fuzz_seed)
    weight = torch.randn(6, 3, dtype=torch.float64)
    ours = st.EmbeddingBag(
        6, 3, mode=mode, scale_grad_by_freq=True, padding_idx=2, _weight=weight,
        optimizer=sc.optimizers.SGD(0.5),
    )  # fmt: skip
    rows = torch.nn.Embedding(6, 3, scale_grad_by_freq=True, padding_idx=2, _weight=weight.clone())
    optimizer = torch.optim.SGD(rows.parameters(), lr=0.5)
    ids = torch.tensor([[3, 4, 1, 0], [3, 1, 1, 1]])
    weights = torch.rand(2, 4, dtype=torch.float64, requires_grad=True) if weighted else None
    theirs = rows(ids) if weights is None else rows(ids) * weights[..., None]
    theirs = theirs.sum(1) if mode == "sum" else theirs.mean(1)
    gradient = torch.randn_like(theirs)
    theirs.backward(gradient)
    optimizer.step()
    of_weights = None if weights is None else weights.grad.clone()
    out = ours(ids, per_sample_weights=weights)
    close(out, theirs, torch.float64)
    if weights is not None:
        weights.grad = None
    out.backward(gradient)
    close(table_of(ours), rows.weight, torch.float64)
    if weights is not None:
        close(weights.grad, of_weights, torch.float64)


def test_embedding_is_torchs(fuzz_seed):
    rng = random.Random(fuzz_seed)
    torch.manual_seed(fuzz_seed)
    for case in range(CASES):
        rows, dim, dtype = rng.randrange(2, 9), rng.randrange(1, 6), rng.choice([*DTYPES])
        options = options_of(rng, rows, "Embedding")
        weight = torch.randn(rows, dim, dtype=dtype)
        ours, theirs, optimizer = pair("Embedding", options, rows, dim, dtype, weight, 0.5)
        for _ in range(3):
            shape = [rng.randrange(0, 4) for _ in range(rng.randrange(0, 4))]
            ids = torch.randint(0, rows, shape, dtype=rng.choice([torch.int64, torch.int32]))
            show(case, rows=rows, dim=dim, dtype=dtype, options=options, ids=ids)
            found = [module(ids) for module in (ours, theirs)]
            close(found[0], found[1], dtype)
            gradient = torch.randn_like(found[1])
            optimizer.zero_grad()
            for out in found:
                out.backward(gradient)
            optimizer.step()
            close(table_of(ours), theirs.weight, dtype)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_types_take_gradients_of_their_own(mode, dtype):
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    weight = torch.tensor([[1.0, -2.0], [0.5, 3.0], [4.0, 0.25]], dtype=dtype)
    ours, theirs, optimizer = pair("EmbeddingBag", {"mode": mode}, 3, 2, dtype, weight, 0.5)
    ids = torch.tensor([[0, 2], [1, 1]])
    found = [ours(ids), theirs(ids)]
    torch.testing.assert_close(found[0], found[1])
    assert found[0].dtype == dtype
    gradient = torch.tensor([[1.0, 0.5], [2.0, -1.0]], dtype=dtype)
    for out in found:
        out.backward(gradient)
    optimizer.step()
    after = ours.weight
    assert after.dtype == dtype
    torch.testing.assert_close(torch.Tensor(after.float()), theirs.weight.detach().float())
    assert not torch.equal(theirs.weight.detach(), weight)


@pytest.mark.parametrize("kind", ["EmbeddingBag", "Embedding"])
def test_nested_tensors_are_taken_as_torch_takes_them(kind):
    weight = torch.randn(7, 3)
    options = {"mode": "sum"} if kind == "EmbeddingBag" else {}
    ours, theirs, optimizer = pair(kind, options, 7, 3, torch.float32, weight, 0.5)
    lists = [torch.tensor([1, 5]), torch.tensor([2, 2, 2]), torch.tensor([], dtype=torch.int64)]
    ids = torch.nested.nested_tensor(lists, layout=torch.jagged)
    found = [ours(ids), theirs(ids)]
    assert found[0].is_nested == found[1].is_nested == (kind == "Embedding")
    if kind == "Embedding":
        assert torch.equal(found[0].offsets(), found[1].offsets())
        found = [one.values() for one in found]
    close(found[0], found[1], torch.float32)
    for out in found:
        (out**2).sum().backward()
    optimizer.step()
    close(table_of(ours), theirs.weight, torch.float32)


def test_nested_weights_go_with_nested_ids():
    weight = torch.randn(7, 3)
    ours, theirs, _ = pair("EmbeddingBag", {"mode": "sum"}, 7, 3, torch.float32, weight, 0.5)
    ids = torch.nested.nested_tensor([torch.tensor([1, 5]), torch.tensor([2])], layout=torch.jagged)
    weights = torch.nested.nested_tensor_from_jagged(torch.tensor([0.5, 2.0, -1.0]), ids.offsets())
    found = [ours(ids, per_sample_weights=weights), theirs(ids, per_sample_weights=weights)]
    close(found[0], found[1], torch.float32)


def narrowed(values):
    """Return bags of 2, 1, 0 and 2 values, with others between them."""
    begins, lengths = torch.tensor([0, 1, 2, 2]), torch.tensor([2, 1, 0, 2])
    return torch.nested.narrow(values, dim=1, start=begins, length=lengths, layout=torch.jagged)


def test_offsets_that_lie_apart():
    ids, rows = torch.arange(6), torch.randn(12, 3)
    ends = torch.tensor([0, 9, 2, 9, 6])[::2]
    bag = st.EmbeddingBag(12, 3, mode="sum", _weight=rows, include_last_offset=True)
    assert torch.equal(bag(ids, ends), bag(ids, ends.clone()))
    begins = st.EmbeddingBag(12, 3, mode="sum", _weight=rows)
    assert torch.equal(begins(ids, ends[:2]), bag(ids, ends))


def test_nested_tensors_that_were_narrowed_are_their_bags_alone():
    ids, weights = torch.arange(16).reshape(4, 4) % 12, torch.rand(4, 4)
    values = torch.cat([ids[0, :2], ids[1, 1:2], ids[3, 2:]])
    splits = torch.tensor([0, 2, 3, 3, 5])
    rows = torch.randn(12, 3)
    bag = st.EmbeddingBag(12, 3, mode="sum", _weight=rows, include_last_offset=True)
    assert torch.equal(bag(narrowed(ids)), bag(values, splits))
    found = bag(narrowed(ids), per_sample_weights=narrowed(weights))
    of_values = torch.cat([weights[0, :2], weights[1, 1:2], weights[3, 2:]])
    assert torch.equal(found, bag(values, splits, of_values))
    found = st.Embedding(12, 3, _weight=rows)(narrowed(ids))
    assert torch.equal(found.values(), rows[values])
    assert torch.equal(found.offsets(), splits)
    tables = [st.EmbeddingBagConfig(12, 3, "t", ["a"])]
    bags = st.EmbeddingBagCollection(tables)
    assert torch.equal(bags({"a": narrowed(ids)})["a"], bags({"a": (values, splits)})["a"])


@pytest.mark.parametrize("kind", ["EmbeddingBag", "Embedding"])
def test_pretrained_rows_are_frozen_unless_told(kind):
    rows = torch.randn(5, 2)
    ours, theirs = (getattr(one, kind).from_pretrained(rows) for one in (st, torch.nn))
    ids = torch.tensor([[0, 4], [1, 1]])
    assert torch.equal(ours(ids), theirs(ids))
    assert not ours(ids).requires_grad
    assert not theirs(ids).requires_grad
    trained = getattr(st, kind).from_pretrained(
        rows, freeze=False, optimizer=sc.optimizers.SGD(0.5)
    )
    trained(ids).sum().backward()
    assert not torch.equal(table_of(trained), rows)


def test_arguments_stand_where_torch_has_them():
    import inspect

    for kind in ("EmbeddingBag", "Embedding"):
        ours, theirs = getattr(st, kind), getattr(torch.nn, kind)
        for name in ("__init__", "from_pretrained", "forward"):
            own, peer = (inspect.signature(getattr(one, name)).parameters for one in (ours, theirs))
            common = [one for one in own if own[one].kind != inspect.Parameter.KEYWORD_ONLY]
            assert common == list(peer)
            assert [own[one].default for one in peer] == [peer[one].default for one in peer]


def test_first_values_are_standard_normal_and_follow_torchs_seed():
    def rows(seed):
        torch.manual_seed(seed)
        return table_of(st.Embedding(2000, 8, padding_idx=3))

    one = rows(1)
    assert torch.equal(one, rows(1))
    assert not torch.equal(one, rows(2))
    assert abs(one.mean()) < 0.03
    assert abs(one.std() - 1) < 0.03
    assert not one[3].any()


@pytest.mark.parametrize("kind", ["EmbeddingBag", "Embedding"])
def test_a_module_is_frozen_as_torchs_are(kind):
    ours = getattr(st, kind)(5, 2, _weight=torch.ones(5, 2), optimizer=sc.optimizers.SGD(0.5))
    theirs = getattr(torch.nn, kind)(5, 2, _weight=torch.ones(5, 2))
    ids = torch.tensor([[1, 2]])
    for wanted in (False, True):
        assert ours.requires_grad_(wanted) is ours
        theirs.requires_grad_(wanted)
        assert ours(ids).requires_grad == theirs(ids).requires_grad == wanted
    ours(ids).sum().backward()
    assert ours.engine.step == 1
