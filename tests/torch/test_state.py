"""What is saved and loaded, copied, pickled and moved."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import shardcore as sc  # noqa: E402
import shardcore.torch as st  # noqa: E402

IDS = torch.tensor([[1, 2], [2, 4]])


def bag(**options):
    torch.manual_seed(0)
    optimizer = sc.optimizers.Adam(0.1, preset="tpu")
    return st.EmbeddingBag(6, 2, **{"mode": "sum", "optimizer": optimizer, **options})


def trained(**options):
    module = bag(**options)
    for _ in range(2):
        (module(IDS) ** 2).sum().backward()
    return module


def collection():
    tables = [
        st.EmbeddingBagConfig(6, 2, "user", ["clicks"]),
        st.EmbeddingBagConfig(5, 3, "item", ["seen"]),
    ]
    return st.EmbeddingBagCollection(tables, optimizer=sc.optimizers.Adagrad(0.1))


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_state_has_rows_slots_and_step_as_tensors():
    state = trained().state_dict()
    assert list(state) == ["weight", "slots.momenta", "slots.velocities", "step"]
    assert {type(one) for one in state.values()} == {torch.Tensor}
    assert state["step"].item() == 2
    assert state["slots.momenta"].shape == (6, 2)
    assert state["slots.momenta"][1].any()


def test_keys_of_a_collection_are_torchrecs():
    assert list(collection().state_dict()) == [
        "embedding_bags.user.weight",
        "embedding_bags.user.slots.accumulators",
        "embedding_bags.item.weight",
        "embedding_bags.item.slots.accumulators",
        "step",
    ]


def test_a_state_without_an_optimizer_is_torchs():
    ours, theirs = bag(optimizer=None), torch.nn.EmbeddingBag(6, 2, mode="sum")
    ours.load_state_dict(theirs.state_dict())
    same(ours.state_dict(), theirs.state_dict())
    theirs.load_state_dict(bag(optimizer=None).state_dict())
    same(bag(optimizer=None).state_dict(), theirs.state_dict())


def test_what_is_loaded_trains_on_as_if_nothing_had_been():
    one = torch.nn.Sequential(trained(), torch.nn.Linear(2, 1))
    state = through_a_file(one.state_dict())
    other = torch.nn.Sequential(bag(), torch.nn.Linear(2, 1))
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    for model in (one, other):
        (model(IDS) ** 2).sum().backward()
    same(one[0].state_dict(), other[0].state_dict())
    assert other[0].engine.step == 3


def test_what_was_loaded_is_a_copy():
    module, state = bag(), trained().state_dict()
    module.load_state_dict(state)
    before = module.state_dict()
    for one in state.values():
        one.zero_()
    same(module.state_dict(), before)


def test_keys_are_strict():
    state = trained().state_dict()
    del state["slots.momenta"]
    state["bias"] = torch.zeros(1)
    module = bag()
    before = module.state_dict()
    with pytest.raises(RuntimeError) as told:
        module.load_state_dict(state)
    assert 'Missing key(s) in state_dict: "slots.momenta"' in str(told.value)
    assert 'Unexpected key(s) in state_dict: "bias"' in str(told.value)
    module.load_state_dict(before)
    found = module.load_state_dict({"weight": torch.ones(6, 2)}, strict=False)
    assert found.missing_keys == ["slots.momenta", "slots.velocities", "step"]
    after = module.state_dict()
    assert torch.equal(after["weight"], torch.ones(6, 2))
    assert torch.equal(after["slots.momenta"], before["slots.momenta"])


def test_a_wrong_shape_changes_nothing():
    module = trained()
    before, state = module.state_dict(), trained().state_dict()
    state["weight"] = torch.ones(6, 2)
    state["slots.momenta"] = torch.zeros(2, 6)
    told = "slots.momenta must be a tensor of shape (6, 2), got (2, 6)"
    with pytest.raises(RuntimeError, match=re.escape(told)):
        module.load_state_dict(state)
    same(module.state_dict(), before)


def test_loading_drops_what_was_in_flight():
    module = bag(update="step")
    out = module(IDS)
    module(IDS).sum().backward()
    module.load_state_dict(trained().state_dict())
    assert module.engine.in_flight == 0
    module.step()
    assert module.engine.step == 2
    out.sum().backward()
    told = (
        "pairs[0]: apply came for a lookup that was dropped by a restore: look the batch up again"
    )
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(told)}$"):
        module.step()


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("make", [trained, collection])
def test_copies_have_tables_of_their_own(how, make):
    one = make()
    other = copy.deepcopy(one) if how == "deepcopy" else pickle.loads(pickle.dumps(one))
    before = one.state_dict()
    same(other.state_dict(), before)
    if make is trained:
        (other(IDS) ** 2).sum().backward()
        assert (one.engine.step, other.engine.step) == (2, 3)
    other.load_state_dict({name: torch.zeros_like(one) for name, one in before.items()})
    same(one.state_dict(), before)


def test_a_backend_of_ones_own_cannot_be_copied():
    told = (
        "EmbeddingBag with a backend of its own cannot be copied or pickled: give backend= a name"
    )
    with pytest.raises(sc.ShardcoreError, match=re.escape(told)):
        copy.deepcopy(bag(backend=sc.get_backend("sim", hosts=2)))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader_look_up(context):
    done = subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name("load_data.py"), context],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    # torch gives each worker one thread.
    assert done.stdout == "[[0.0, 1.0], [2.0, 3.0]] [1, 1]\n[[4.0, 5.0], [6.0, 7.0]] [1, 1]\n", (
        done.stderr
    )


def test_moves_that_do_nothing_are_allowed():
    module = torch.nn.Sequential(bag(), torch.nn.Linear(2, 1))
    assert module.to("cpu") is module
    assert module.float() is module
    assert module.train().eval() is module


@pytest.mark.parametrize(
    ("move", "told"),
    [
        (
            lambda model: model.double(),
            "EmbeddingBag must stay torch.float32, got torch.float64: a table's dtype is chosen "
            "when it is made, with dtype=torch.float64",
        ),
        (
            lambda model: model.to("meta"),
            "EmbeddingBag must stay on the CPU, got device 'meta': move the other modules, and "
            "its output",
        ),
        (
            lambda model: model.share_memory(),
            "EmbeddingBag must not share its memory: its tables belong to one process; pickle "
            "it, or fork, for a copy that is looked up",
        ),
    ],
)
def test_moves_that_tables_cannot_make_are_refused(move, told):
    model = torch.nn.Sequential(bag(), torch.nn.Linear(2, 1))
    with pytest.raises(sc.ShardcoreError, match=re.escape(told)):
        move(model)


def test_weight_is_a_copy_that_refuses_to_be_written():
    module = bag()
    weight = module.weight
    assert (weight + 1).__class__ is torch.Tensor
    for write, name in [
        (lambda w: w.zero_(), "zero_"),
        (lambda w: w.data.copy_(torch.zeros(6, 2)), "copy_"),
        (lambda w: w.detach().add_(1), "add_"),
        (lambda w: w.__setitem__(0, 1), "__setitem__"),
        (lambda w: w[2:].fill_(0), "fill_"),
        (lambda w: w.__iadd__(1), "add_"),
        (lambda w: w.__ifloordiv__(2), "floor_divide_"),
        (torch.nn.init.zeros_, "zero_"),
        (torch.nn.init.xavier_uniform_, "uniform_"),
        (lambda w: w.requires_grad_(False), "requires_grad_"),
    ]:
        told = (
            f"weight is a copy of the table, which {name} would not change: assign module.weight "
            "= tensor for all rows, or module.engine.tables[name][rows] = values"
        )
        with pytest.raises(sc.ShardcoreError, match=re.escape(told)):
            write(weight)


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_weight_is_assigned_whole(kind):
    module = bag()
    module.weight = kind(torch.full((6, 2), 3.0))
    assert module.engine.tables["embedding"][0].tolist() == [3, 3]
    assert not list(module.parameters())
    told = "weight must have shape (6, 2), got (2, 6)"
    with pytest.raises(sc.ShardcoreError, match=re.escape(told)):
        module.weight = torch.zeros(2, 6)


def test_reset_parameters_draws_anew():
    module = bag(padding_idx=1)
    before = module.state_dict()["weight"]
    module.reset_parameters()
    after = module.state_dict()["weight"]
    assert not torch.equal(before, after)
    assert not after[1].any()


def test_an_engine_of_a_module_goes_into_a_checkpoint(tmp_path):
    one, other = trained(), bag()
    sc.Checkpoint(table=one.engine).save(tmp_path / "c", step=2)
    sc.Checkpoint(table=other.engine).restore(tmp_path / "c")
    same(one.state_dict(), other.state_dict())


def test_repr_says_what_it_is():
    assert repr(bag(optimizer=None, padding_idx=2)) == (
        "EmbeddingBag(6, 2, padding_idx=2, mode='sum')"
    )
