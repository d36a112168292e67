"""Many tables at once: beside torch's modules, one each, and in torchrec's forms."""

from __future__ import annotations

import enum
import random
import re
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import shardcore as sc  # noqa: E402
import shardcore.torch as st  # noqa: E402


class PoolingType(enum.Enum):  # torchrec's
    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


class KeyedJaggedTensor:
    """The part of torchrec's that is asked for."""

    def __init__(self, keys, values, lengths, weights=None):
        self._given = keys, values, lengths, weights

    def keys(self):
        return self._given[0]

    def values(self):
        return self._given[1]

    def lengths(self):
        return self._given[2]

    def weights_or_none(self):
        return self._given[3]


TABLES = [
    st.EmbeddingBagConfig(7, 2, "user", ["clicks", "likes"], pooling="sum"),
    st.EmbeddingBagConfig(5, 3, "item", ["seen", "likes"], pooling="mean"),
]
KEYS = ["clicks", "likes@user", "seen", "likes@item"]


def batch(rng, names, bags=3, rows=5):
    found = {}
    for name in names:
        lengths = [rng.randrange(0, 4) for _ in range(bags)]
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        found[name] = (torch.randint(0, rows, (sum(lengths),)), offsets)
    return found


def keyed(features, names, weights=None):
    lengths = torch.cat([features[name][1].diff() for name in names])
    values = torch.cat([features[name][0] for name in names])
    return KeyedJaggedTensor(names, values, lengths, weights)


def peers(ours, mode):
    return {
        table.name: torch.nn.EmbeddingBag(
            table.num_embeddings, table.embedding_dim, mode=mode[table.name],
            include_last_offset=True,
            _weight=torch.from_numpy(ours.engine.tables[table.name].numpy()),
        )
        for table in TABLES
    }  # fmt: skip


@pytest.mark.parametrize("form", ["dict", "keyed", "nested", "two axes"])
def test_bags_are_those_of_modules_of_torchs(form, fuzz_seed):
    rng = random.Random(fuzz_seed)
    torch.manual_seed(fuzz_seed)
    ours = st.EmbeddingBagCollection(TABLES, optimizer=sc.optimizers.SGD(0.5))
    theirs = peers(ours, {"user": "sum", "item": "mean"})
    optimizer = torch.optim.SGD([p for one in theirs.values() for p in one.parameters()], lr=0.5)
    for step in range(3):
        features = batch(rng, ["clicks", "likes", "seen"])
        given = features
        if form == "keyed":
            more = {**features, "other": features["seen"]}
            given = keyed(more, ["seen", "other", "likes", "clicks"])
        elif form == "nested":
            given = {
                name: torch.nested.nested_tensor_from_jagged(*one) for name, one in features.items()
            }
        elif form == "two axes":
            given = {name: torch.randint(0, 5, (3, 2)) for name in features}
            features = {name: (one.reshape(-1), torch.arange(4) * 2) for name, one in given.items()}
        found = ours(given)
        assert found.keys() == KEYS
        of_feature = {key: key.split("@")[0] for key in KEYS}
        of_table = {"clicks": "user", "likes@user": "user", "seen": "item", "likes@item": "item"}
        peer = {key: theirs[of_table[key]](*features[of_feature[key]]) for key in KEYS}
        for key in KEYS:
            torch.testing.assert_close(found[key].detach(), peer[key].detach())
        assert torch.equal(found.values(), torch.cat([found[key] for key in KEYS], dim=1))
        assert found.length_per_key() == [2, 2, 3, 3]
        gradient = torch.randn(3, 10)
        found.values().backward(gradient)
        optimizer.zero_grad()
        torch.cat([peer[key] for key in KEYS], dim=1).backward(gradient)
        optimizer.step()
        for name, one in theirs.items():
            rows = torch.from_numpy(ours.engine.tables[name].numpy())
            torch.testing.assert_close(rows, one.weight.detach(), rtol=1e-5, atol=1e-6)
        assert ours.engine.step == step + 1


def test_features_whose_gradient_does_not_come_stay():
    ours = st.EmbeddingBagCollection(TABLES, optimizer=sc.optimizers.SGD(0.5))
    before = ours.state_dict()
    one = torch.tensor([[1], [2]])
    ours({"clicks": one, "likes": one, "seen": one})["seen"].sum().backward()
    after = ours.state_dict()
    key = "embedding_bags.{}.weight".format
    assert torch.equal(before[key("user")], after[key("user")])
    assert not torch.equal(before[key("item")], after[key("item")])


def test_steps_sum_over_calls_and_tables():
    ours = st.EmbeddingBagCollection(TABLES, optimizer=sc.optimizers.SGD(0.5), update="step")
    one = torch.tensor([[1], [2]])
    before = ours.state_dict()["embedding_bags.user.weight"]
    for _ in range(2):
        ours({"clicks": one, "likes": one, "seen": one}).values().sum().backward()
    ours.step()
    assert ours.engine.step == 1
    rows = ours.state_dict()["embedding_bags.user.weight"]
    torch.testing.assert_close((before - rows)[:3, 0], torch.tensor([0.0, 2.0, 2.0]))


@pytest.mark.parametrize("form", ["dict", "keyed"])
def test_weights_of_ids_are_differentiated(form):
    tables = [
        {"name": "user", "num_embeddings": 7, "embedding_dim": 2, "feature_names": ["clicks"],
         "dtype": torch.float64},
        {"name": "item", "num_embeddings": 5, "embedding_dim": 3, "feature_names": ["seen"],
         "dtype": torch.float64},
    ]  # fmt: skip
    ours = st.EmbeddingBagCollection(tables, is_weighted=True, optimizer=sc.optimizers.SGD(0.5))
    features = batch(random.Random(1), ["clicks", "seen"])
    sizes = [features[name][0].numel() for name in ("clicks", "seen")]
    weights = torch.randn(sum(sizes), dtype=torch.float64, requires_grad=True)

    def values(weights):
        if form == "keyed":
            return ours(keyed(features, ["clicks", "seen"], weights)).values()
        first, second = weights.split(sizes)
        return ours(
            {"clicks": (*features["clicks"], first), "seen": (*features["seen"], second)}
        ).values()

    assert torch.autograd.gradcheck(values, [weights])
    assert ours.engine.step == 0
    values(weights).sum().backward()
    assert ours.engine.step == 1


def test_configurations_are_read_as_torchrecs():
    config = types.SimpleNamespace(
        name="user", num_embeddings=4, embedding_dim=2, feature_names=["clicks"],
        pooling=PoolingType.MEAN, init_fn=lambda tensor: tensor.fill_(3),
    )  # fmt: skip
    ours = st.EmbeddingBagCollection(tables=[config], device=torch.device("cpu"))
    assert ours({"clicks": torch.tensor([[0, 1]])})["clicks"].tolist() == [[3, 3]]


def test_rows_of_an_embedding_collection(fuzz_seed):
    torch.manual_seed(fuzz_seed)
    tables = [st.EmbeddingConfig(7, 2, "word", ["text", "title"])]
    ours = st.EmbeddingCollection(tables, optimizer=sc.optimizers.SGD(0.5))
    theirs = torch.nn.Embedding(7, 2, _weight=torch.from_numpy(ours.engine.tables["word"].numpy()))
    features = batch(random.Random(fuzz_seed), ["text", "title"])
    found = ours(features)
    loss = 0
    for name, (ids, offsets) in features.items():
        rows = theirs(ids)
        assert torch.equal(found[name].values().detach(), rows.detach())
        assert torch.equal(found[name].offsets(), offsets)
        assert torch.equal(found[name].lengths(), offsets.diff())
        loss = loss + (rows**2).sum()
    sum((found[name].values() ** 2).sum() for name in features).backward()
    loss.backward()
    torch.optim.SGD(theirs.parameters(), lr=0.5).step()
    rows = torch.from_numpy(ours.engine.tables["word"].numpy())
    torch.testing.assert_close(rows, theirs.weight.detach(), rtol=1e-5, atol=1e-6)
    assert list(ours.state_dict()) == ["embeddings.word.weight", "step"]


def test_first_values_are_torchrecs():
    torch.manual_seed(0)
    tables = [st.EmbeddingConfig(10_000, 4, "word", ["text"])]
    rows = st.EmbeddingCollection(tables).engine.tables["word"].numpy()
    assert abs(rows).max() <= 0.01
    assert abs(rows.std() - 0.01 / 3**0.5) < 1e-4


def test_modules_over_one_engine_step_together():
    ours = st.EmbeddingBagCollection(TABLES, optimizer=sc.optimizers.SGD(0.5), update="step")
    theirs = peers(ours, {"user": "sum", "item": "mean"})
    optimizer = torch.optim.SGD([p for one in theirs.values() for p in one.parameters()], lr=0.5)
    clicks, seen = ours.feature("clicks"), ours.feature("seen")
    assert repr(seen) == "FeatureModule('seen' of table 'item')"
    ids, offsets = torch.tensor([1, 2, 2, 4]), torch.tensor([0, 1])
    more = torch.tensor([[1, 2]])
    for first, second, third in (
        (clicks(ids, offsets), seen(more), clicks(more)),
        (theirs["user"](ids, torch.tensor([0, 1, 4])), theirs["item"](more), theirs["user"](more)),
    ):
        ((first**2).sum() + (second * 3).sum() + third.sum()).backward()
    optimizer.step()
    assert ours.engine.step == 0
    ours.step()
    assert (ours.engine.step, ours.engine.in_flight) == (1, 0)
    for name, one in theirs.items():
        rows = torch.from_numpy(ours.engine.tables[name].numpy())
        torch.testing.assert_close(rows, one.weight.detach(), rtol=1e-5, atol=1e-6)


def test_a_module_of_one_feature_updates_at_once_and_takes_weights():
    ours = st.EmbeddingBagCollection(TABLES, optimizer=sc.optimizers.SGD(0.5))
    before = ours.state_dict()
    weights = torch.tensor([[2.0, 0.0]], requires_grad=True)
    ours.feature("clicks")(torch.tensor([[1, 2]]), per_sample_weights=weights).sum().backward()
    after = ours.state_dict()
    rows = {key: before[key] - after[key] for key in before}
    assert rows["embedding_bags.user.weight"][:3].round(decimals=4).tolist() == [
        [0, 0], [1, 1], [0, 0]
    ]  # fmt: skip
    assert not rows["embedding_bags.item.weight"].any()
    torch.testing.assert_close(
        weights.grad[0], before["embedding_bags.user.weight"][1:3].sum(dim=1)
    )
    assert ours.feature("clicks")(torch.tensor([[6]])).shape == (1, 2)  # no row of the other table
    told = "per_sample_weights must be None with pooling='mean': only 'sum' takes them"
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        ours.feature("seen")(torch.tensor([[1, 2]]), per_sample_weights=torch.ones(1, 2))
    told = "key must be one of 'clicks', 'likes@user', 'seen', 'likes@item', got 'likes'"
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        ours.feature("likes")


def test_a_module_of_rows_has_the_shape_of_its_ids():
    ours = st.EmbeddingCollection([st.EmbeddingConfig(7, 2, "word", ["text", "title"])])
    ids = torch.tensor([[1, 2, 3], [3, 2, 1]])
    rows = torch.from_numpy(ours.engine.tables["word"].numpy())
    assert torch.equal(ours.feature("title")(ids), rows[ids])


IDS = torch.tensor([1, 2, 3])
SPLITS = torch.tensor([0, 2, 3])


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ([], "tables must be a list of at least one configuration, got []"),
        ("user", "tables must be a list of at least one configuration, got 'user'"),
        ([{"name": "a"}], "tables[0] must have feature_names, got {'name': 'a'}"),
        (
            [st.EmbeddingBagConfig(4, 2, "a", "clicks")],
            "tables[0].feature_names must be a list of names, got 'clicks'",
        ),
        (
            [st.EmbeddingBagConfig(4, 2, "a", [])],
            "tables[0].feature_names must hold at least one name",
        ),
        (
            [st.EmbeddingBagConfig(4, 2, "a", ["f"], pooling="max")],
            "tables[0].pooling must be 'sum' or 'mean', got 'max'; for 'max' there is EmbeddingBag",
        ),
    ],
)
def test_wrong_tables_are_named(tables, told):
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        st.EmbeddingBagCollection(tables)


def test_weights_are_of_sums():
    told = "tables[0].pooling must be 'sum' with is_weighted=True, got 'mean'"
    table = st.EmbeddingBagConfig(4, 2, "a", ["f"], pooling="mean")
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        st.EmbeddingBagCollection([table], is_weighted=True)
    told = "is_weighted must be a bool, got 1"
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        st.EmbeddingBagCollection([table], is_weighted=1)


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ({"b": (IDS, SPLITS)}, "features must hold 'a', got 'b'"),
        (
            [IDS],
            "features must be a dict of name -> (values, offsets) or a KeyedJaggedTensor, got list",
        ),
        (
            {"a": IDS},
            "features['a']: must be (values, offsets), (values, offsets, weights), a tensor of "
            "rank 2 or a nested one, got Tensor of rank 1",
        ),
        (
            {"a": IDS.tolist()},
            "features['a']: must be (values, offsets), (values, offsets, weights), a tensor of "
            "rank 2 or a nested one, got list",
        ),
        (
            {"a": (IDS, SPLITS[:2])},
            "features['a']: offsets must end with the number of ids in values, 3, got 2",
        ),
        (
            {"a": (torch.ones(2, 2, dtype=torch.int64), SPLITS)},
            "features['a']: values must be of rank 1, got shape (2, 2)",
        ),
        (
            {"a": (IDS + 1, SPLITS)},
            "features['a']: ids[2] = 4 is outside table 't': must be in [0, 4)",
        ),
        (
            {"a": (IDS.float(), SPLITS)},
            "features['a']: values must be int64 or int32, got torch.float32",
        ),
        (KeyedJaggedTensor(["b"], IDS, torch.tensor([3])), "features must hold 'a', got 'b'"),
        (
            KeyedJaggedTensor(["a", "b"], IDS, torch.tensor([1, 1, 1])),
            "features.lengths() must hold as many for each of 2 keys, got 3",
        ),
        (
            KeyedJaggedTensor(["a"], IDS, torch.tensor([1, 1])),
            "features.lengths() must be >= 0 and sum to the number of values, 3, got 2",
        ),
    ],
)
def test_wrong_features_are_named(features, told):
    ours = st.EmbeddingBagCollection([st.EmbeddingBagConfig(4, 2, "t", ["a"])])
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        ours(features)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ((), "features['a']: weights must be given with is_weighted=True, got none"),
        ((IDS,), "features['a']: weights must be a tensor of floats"),
        (
            (torch.ones(2),),
            "features['a']: weights must have shape (3,), one per id, got (2,)",
        ),
    ],
)
def test_wrong_weights_are_named(weights, told):
    ours = st.EmbeddingBagCollection([st.EmbeddingBagConfig(4, 2, "t", ["a"])], is_weighted=True)
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        ours({"a": (IDS, SPLITS, *weights)})
