from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import shardcore as sc
from shardcore.checkpoint import Checkpoint, inspect
from shardcore.checkpoint.adapters import as_checkpointable
from shardcore.checkpoint.parallel_variable import ParallelVariable, independent_buffers
from shardcore.checkpoint.state import RestorePlan
from shardcore.errors import (
    CorruptCheckpointError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
)


def pair(left=-1.0, right=3.0, **options):
    return ParallelVariable([np.array([left]), np.array([right])], **options)


def values(variable):
    return [component.tolist() for component in variable.unpack()]


# what it is


def test_what_it_tells_of_itself():
    shards = sc.create_variable((4, 2), num_shards=2, name="w")
    v = ParallelVariable([shards, np.zeros((4, 2), np.float32)], ["left", "right"])
    assert (v.name, v.shape, v.dtype, v.devices) == ("w", (4, 2), np.float32, ("left", "right"))
    assert len(v) == 2
    assert list(v) == list(v.components)
    assert v.components[0] is shards
    assert repr(v) == (
        "ParallelVariable(name='w', shape=(4, 2), dtype=float32, devices=('left', 'right'))"
    )
    assert ParallelVariable([np.zeros(1)], name="b").name == "b"
    assert ParallelVariable([np.zeros(1)]).name == "ParallelVariable"
    assert pair().devices == ("device:0", "device:1")


def test_pack_copies_and_unpack_copies():
    given = np.array([1, 2])
    v = ParallelVariable.pack([given, [3, 4]], ["a", "b"])
    given[:] = 0
    assert values(v) == [[1, 2], [3, 4]]
    assert v.devices == ("a", "b")
    v.unpack()[0][:] = 9
    assert values(v) == [[1, 2], [3, 4]]
    assert [x.tolist() for x in ParallelVariable.unpack(v)] == [[1, 2], [3, 4]]
    assert ParallelVariable.pack([-1.0, 3.0]).shape == ()
    same = np.ones(2)
    assert values(ParallelVariable.pack([same, same])) == [[1, 1], [1, 1]]


SHARED = np.zeros(4)


@pytest.mark.parametrize(
    ("components", "options", "error", "message"),
    [
        (
            3,
            {},
            ShardcoreTypeError,
            "components must be a sequence of arrays or variables, got int",
        ),
        ([], {}, ShardcoreValueError, "components must hold at least one, got none"),
        (
            [np.zeros(1), 2.0],
            {},
            ShardcoreTypeError,
            "components[1] must be an ndarray or a ShardedVariable, got float",
        ),
        (
            [np.zeros(1), np.zeros(2)],
            {},
            ShardcoreValueError,
            "components must have one shape: components[1] has (2,), components[0] has (1,)",
        ),
        (
            [np.zeros(1), np.zeros(1, np.float32)],
            {},
            ShardcoreValueError,
            "components must have one dtype: components[1] has float32, components[0] has float64",
        ),
        (
            [SHARED[:2], np.zeros(2), SHARED[1:3]],
            {},
            ShardcoreValueError,
            "components[0] and components[2] must not share memory",
        ),
        (
            [np.zeros((2,)), sc.ShardedVariable([SHARED[:1], SHARED[2:3]]), SHARED[2:]],
            {},
            ShardcoreValueError,
            "components[1] and components[2] must not share memory",
        ),
        (
            [np.zeros(1, complex)],
            {},
            ShardcoreTypeError,
            "object 'ParallelVariable, component 0'",
        ),
        (
            [np.zeros(1)],
            {"devices": 2},
            ShardcoreValueError,
            "devices must name every component, 1, got 2",
        ),
        ([np.zeros(1)], {"devices": 0}, ShardcoreValueError, "devices must be an integer >= 1"),
        (
            [np.zeros(1)],
            {"devices": "gpu"},
            ShardcoreTypeError,
            "devices must be a number or a sequence of names, got 'gpu'",
        ),
        (
            [np.zeros(1)],
            {"devices": True},
            ShardcoreTypeError,
            "devices must be a number or a sequence of names, got True",
        ),
        (
            [np.zeros(1)],
            {"devices": []},
            ShardcoreValueError,
            "devices must hold at least one name, got none",
        ),
        ([np.zeros(1)], {"devices": [0]}, ShardcoreTypeError, "devices[0] must be a string, got 0"),
        (
            [np.zeros(1)],
            {"devices": ["a", "b", "a"]},
            ShardcoreValueError,
            "devices must be distinct: devices[2] = 'a' is devices[0] too",
        ),
        (
            [np.zeros(1)],
            {"name": 3},
            ShardcoreTypeError,
            "name must be a string or None, got 3",
        ),
        (
            [np.zeros(1)],
            {"primary_only": 1},
            ShardcoreTypeError,
            "primary_only must be a bool, got 1",
        ),
        (
            [np.zeros(1)],
            {"partial_restore": None},
            ShardcoreTypeError,
            "partial_restore must be a bool, got None",
        ),
    ],
)
def test_messages(components, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ParallelVariable(components, **options)


def test_messages_of_pack_and_unpack():
    with pytest.raises(
        ShardcoreTypeError, match=re.escape("values must be a list of arrays, got ndarray")
    ):
        ParallelVariable.pack(np.zeros(2))
    with pytest.raises(ShardcoreTypeError, match=re.escape("values[1] must be an array, got str")):
        ParallelVariable.pack([[1], "x"])
    with pytest.raises(
        ShardcoreTypeError, match=re.escape("x must be a ParallelVariable, got ndarray")
    ):
        ParallelVariable.unpack(np.zeros(2))


# checkpoints


def test_each_component_is_saved_and_restored_by_itself(tmp_path):
    v = pair()
    checkpoint = Checkpoint(v=v)
    path = checkpoint.save(tmp_path, step=1)
    for component in v:
        component[...] = 0
    assert checkpoint.restore(tmp_path) == 1
    assert values(v) == [[-1], [3]]
    assert checkpoint.skipped == {}
    assert len(list(path.glob("*.safetensors"))) == 2


def test_sharded_and_whole_components_of_any_rank(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    mod = sc.Layout.mod(6, 2)
    sharded = sc.ShardedVariable([rows[::2] * 2, rows[1::2] * 2], layout=mod)
    v = ParallelVariable([rows.copy(), sharded])
    scalars = ParallelVariable.pack([1, 2, 3])
    checkpoint = Checkpoint(v=v, s=scalars)
    checkpoint.save(tmp_path, step=1)
    other = ParallelVariable([sc.ShardedVariable([rows[:1] * 0, rows[1:] * 0]), rows * 0])
    empty = ParallelVariable.pack([0, 0, 0])
    Checkpoint(v=other, s=empty).restore(tmp_path)
    assert values(other) == [rows.tolist(), (rows * 2).tolist()]
    assert values(empty) == [1, 2, 3]


def test_a_plain_variable_reads_component_0(tmp_path):
    Checkpoint(v=pair()).save(tmp_path, step=1)
    for plain in (np.zeros(1), sc.ShardedVariable([np.zeros(1), np.zeros(0)])):
        checkpoint = Checkpoint(v=plain)
        checkpoint.restore(tmp_path)
        assert np.asarray(plain).tolist() == [-1]
        assert checkpoint.skipped == {"v": ("parallel_component_1",)}
    with pytest.raises(ShardcoreValueError, match="does not have the tensors"):
        Checkpoint(v={"w": np.zeros(1)}).restore(tmp_path)


def test_a_plain_checkpoint_fills_component_0_if_asked(tmp_path):
    Checkpoint(v=np.array([5.0])).save(tmp_path, step=1)
    v = pair()
    message = (
        "parallel variable 'ParallelVariable' restores 2 components, the checkpoint has 1; make it "
        "with partial_restore=True to restore those that both have"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(v=v).restore(tmp_path)
    assert values(v) == [[-1], [3]]
    asked = pair(partial_restore=True)
    Checkpoint(v=asked).restore(tmp_path)
    assert values(asked) == [[5], [3]]
    alone = ParallelVariable([np.zeros(1)])
    Checkpoint(v=alone).restore(tmp_path)
    assert values(alone) == [[5]]


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_components(tmp_path, count):
    Checkpoint(v=pair()).save(tmp_path, step=1)
    zeros = [np.zeros(1) for _ in range(count)]
    message = f"restores {count} components, the checkpoint has 2"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(v=ParallelVariable(zeros)).restore(tmp_path)
    assert all(component == 0 for component in zeros)
    checkpoint = Checkpoint(v=ParallelVariable(zeros, partial_restore=True))
    checkpoint.restore(tmp_path)
    assert [component.tolist() for component in zeros] == [[-1], [3], [0]][:count]
    assert checkpoint.skipped == ({"v": ("parallel_component_1",)} if count == 1 else {})


def test_only_the_primary(tmp_path):
    copies = pair(7.0, 7.0, primary_only=True)
    path = Checkpoint(v=copies).save(tmp_path, step=1)
    assert len(list(path.glob("*.safetensors"))) == 1
    for component in copies:
        component[...] = 0
    Checkpoint(v=copies).restore(path)
    assert values(copies) == [[7], [7]]
    plain = np.zeros(1)
    Checkpoint(v=plain).restore(path)
    assert plain.tolist() == [7]
    more = ParallelVariable([np.zeros(1) for _ in range(3)], primary_only=True)
    Checkpoint(v=more).restore(path)
    assert values(more) == [[7]] * 3
    with pytest.raises(ShardcoreValueError, match="restores 2 components, the checkpoint has 1"):
        Checkpoint(v=pair()).restore(path)


def test_only_the_primary_of_a_checkpoint_of_all(tmp_path):
    Checkpoint(v=pair()).save(tmp_path, step=1)
    copies = pair(0.0, 0.0, primary_only=True)
    with pytest.raises(ShardcoreValueError, match="restores 1 components, the checkpoint has 2"):
        Checkpoint(v=copies).restore(tmp_path)
    asked = pair(0.0, 0.0, primary_only=True, partial_restore=True)
    checkpoint = Checkpoint(v=asked)
    checkpoint.restore(tmp_path)
    assert values(asked) == [[-1], [-1]]
    assert checkpoint.skipped == {"v": ("parallel_component_1",)}


def test_nothing_changes_where_a_component_does_not_fit(tmp_path):
    Checkpoint(v=pair(), w=np.ones(2)).save(tmp_path, step=1)
    frozen = np.zeros(1)
    v = ParallelVariable([np.zeros(1), frozen], name="v")
    frozen.flags.writeable = False
    message = "object 'v, component 1' cannot be restored in place: it is read-only"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(v=v).restore(tmp_path)
    assert values(v) == [[0], [0]]
    wide = ParallelVariable([np.zeros(2), np.zeros(2)])
    message = "object 'ParallelVariable, component 0' must have the saved shape (1,), got (2,)"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(v=wide).restore(tmp_path)
    single = ParallelVariable([np.zeros(1, np.float32), np.zeros(1, np.float32)])
    message = "component 0' must have the saved dtype float64, got float32"
    with pytest.raises(ShardcoreTypeError, match=re.escape(message)):
        Checkpoint(v=single).restore(tmp_path)
    good, bad = pair(0.0, 0.0), np.zeros(3)
    with pytest.raises(ShardcoreValueError, match="must have the saved shape"):
        Checkpoint(v=good, w=bad).restore(tmp_path)
    assert values(good) == [[0], [0]]


def test_a_damaged_component_leaves_all_as_they_were(tmp_path):
    path = Checkpoint(v=pair()).save(tmp_path, step=1)
    (second,) = path.glob("*parallel_component_1*.safetensors")
    content = second.read_bytes()
    damaged = content.replace(np.array([3.0]).tobytes(), np.array([4.0]).tobytes())
    assert damaged != content
    second.write_bytes(damaged)
    v = pair(0.0, 0.0)
    with pytest.raises(CorruptCheckpointError):
        Checkpoint(v=v).restore(path)
    assert values(v) == [[0], [0]]


def test_a_structure_is_no_variable(tmp_path):
    Checkpoint(v={"a": np.zeros(1)}).save(tmp_path, step=1)
    message = (
        "parallel variable 'ParallelVariable' needs a variable in the checkpoint, which holds a "
        "structure of the tensors ['a']"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(v=pair(partial_restore=True)).restore(tmp_path)


# within a structure


@dataclass
class Model:
    kernel: object
    scales: object


def nested(left=-1.0, right=3.0, count=2, **options):
    """A variable at every kind of place, with arrays beside them."""

    def variable():
        parts = [np.array([left]), np.array([right]), np.array([9.0])]
        return ParallelVariable(parts[:count], **options)

    return {
        "a": variable(),
        "b": [np.array([left, right]), (variable(), Model(np.array(right), variable()))],
    }


def inside(structure):
    """Return the variables of `nested`, then its arrays."""
    (array, (second, model)) = structure["b"]
    return [structure["a"], second, model.scales], [array, model.kernel]


def cleared(**options):
    return nested(0.0, 0.0, **options)


def test_it_is_saved_and_restored_within_a_structure(tmp_path):
    path = Checkpoint(net=nested()).save(tmp_path, step=1)
    saved = sorted(inspect(path).objects["net"].tensors)
    places = ("a", "b/1/0", "b/1/1/scales")
    of_components = [f"{place}{own}" for place in places for own in ("", "/parallel_component_1")]
    assert saved == sorted([*of_components, "b/0", "b/1/1/kernel"])
    other = cleared()
    checkpoint = Checkpoint(net=other)
    assert checkpoint.restore(path) == 1
    variables, arrays = inside(other)
    assert [values(v) for v in variables] == [[[-1], [3]]] * 3
    assert [array.tolist() for array in arrays] == [[-1, 3], 3]
    assert checkpoint.skipped == {}
    # The arrays share a file; each component has one of its own.
    assert len(list(path.glob("*.safetensors"))) == 1 + 3 * 2


def test_a_structure_of_variables_alone(tmp_path):
    v = pair()
    checkpoint = Checkpoint(net=(v,))
    checkpoint.save(tmp_path, step=1)
    for component in v:
        component[...] = 0
    checkpoint.restore(tmp_path)
    assert values(v) == [[-1], [3]]


def test_plain_variables_within_a_structure_read_component_0(tmp_path):
    Checkpoint(net={"v": pair(), "w": np.ones(2)}).save(tmp_path, step=1)
    plain = {"v": np.zeros(1), "w": np.zeros(2)}
    checkpoint = Checkpoint(net=plain)
    checkpoint.restore(tmp_path)
    assert [array.tolist() for array in plain.values()] == [[-1], [1, 1]]
    assert checkpoint.skipped == {"net": ("v/parallel_component_1",)}
    Checkpoint(net={"v": np.array([5.0])}).save(tmp_path, step=2)
    v = pair()
    with pytest.raises(ShardcoreValueError, match="restores 2 components, the checkpoint has 1"):
        Checkpoint(net={"v": v}).restore(tmp_path)
    assert values(v) == [[-1], [3]]
    asked = pair(partial_restore=True)
    Checkpoint(net={"v": asked}).restore(tmp_path)
    assert values(asked) == [[5], [3]]


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_components_within_a_structure(tmp_path, count):
    Checkpoint(net=nested()).save(tmp_path, step=1)
    other = cleared(count=count)
    message = (
        f"parallel variable 'ParallelVariable' restores {count} components, the checkpoint has 2; "
        "make it with partial_restore=True to restore those that both have"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(net=other).restore(tmp_path)
    variables, arrays = inside(other)
    assert [values(v)[:2] for v in variables] == [[[0], [0]][:count]] * 3
    assert [array.tolist() for array in arrays] == [[0, 0], 0]
    checkpoint = Checkpoint(net=cleared(count=count, partial_restore=True))
    checkpoint.restore(tmp_path)
    skipped = [f"{place}/parallel_component_1" for place in ("a", "b/1/0", "b/1/1/scales")]
    assert {name: set(left) for name, left in checkpoint.skipped.items()} == (
        {"net": set(skipped)} if count == 1 else {}
    )


def test_only_the_primary_within_a_structure(tmp_path):
    copies = nested(7.0, 7.0, primary_only=True)
    path = Checkpoint(net=copies).save(tmp_path, step=1)
    saved = inspect(path).objects["net"].tensors
    assert not [name for name in saved if "parallel_component" in name]
    more = cleared(count=3, primary_only=True)
    Checkpoint(net=more).restore(path)
    variables, arrays = inside(more)
    assert [values(v) for v in variables] == [[[7]] * 3] * 3
    assert [array.tolist() for array in arrays] == [[7, 7], 7]
    with pytest.raises(ShardcoreValueError, match="restores 2 components, the checkpoint has 1"):
        Checkpoint(net=nested()).restore(path)


def test_nothing_changes_where_one_of_a_structure_does_not_fit(tmp_path):
    path = Checkpoint(net={"v": pair(), "w": pair()}).save(tmp_path, step=1)
    good, wide = pair(0.0, 0.0), ParallelVariable([np.zeros(2), np.zeros(2)])
    message = "object 'ParallelVariable, component 0' must have the saved shape (1,), got (2,)"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(net={"v": good, "w": wide}).restore(path)
    message = (
        "object 'net' does not have the tensors of the checkpoint: missing from it ['x'], "
        "only in it ['w']"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(net={"v": good, "x": pair()}).restore(path)
    (damaged,) = path.glob("*w*parallel_component_1*.safetensors")
    content = damaged.read_bytes()
    damaged.write_bytes(content.replace(np.array([3.0]).tobytes(), np.array([4.0]).tobytes()))
    with pytest.raises(CorruptCheckpointError):
        Checkpoint(net={"v": good, "w": pair()}).restore(path)
    assert values(good) == [[0], [0]]


class Told:
    """Restores nothing, and keeps what it was told."""

    def __init__(self, fails=None):
        self.told = []
        self.fails = fails

    def checkpoint_metadata(self):
        return {"mine": 1}

    def checkpoint_tensors(self):
        return []

    def checkpoint_restore(self, metadata, tensors, *, slots):
        assert (metadata, tensors) == ({"mine": 1}, {})
        if self.fails == "restore":
            raise LookupError("restore fails")
        return RestorePlan(
            {}, live=False, commit=lambda: self.tell("commit"), abort=lambda: self.tell("abort")
        )

    def tell(self, what):
        self.told.append(what)
        if self.fails == what:
            raise LookupError(f"{what} fails")


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (None, [["commit"], ["commit"], ["commit"]]),
        ("restore", [["abort"], [], []]),
        ("commit", [["commit"], ["commit"], ["abort"]]),
    ],
)
def test_whatever_is_checkpointable_is_committed_or_aborted(tmp_path, fails, told):
    Checkpoint(net=[Told(), Told(), Told()]).save(tmp_path, step=1)
    parts = [Told(), Told(fails), Told()]
    checkpoint = Checkpoint(net=parts)
    if fails is None:
        checkpoint.restore(tmp_path)
    else:
        with pytest.raises(LookupError, match=f"{fails} fails"):
            checkpoint.restore(tmp_path)
    assert [part.told for part in parts] == told


def test_an_abort_reaches_all_of_a_structure(tmp_path):
    Checkpoint(net=[Told(), Told()], w=np.ones(2)).save(tmp_path, step=1)
    parts = [Told("abort"), Told()]
    with pytest.raises(ShardcoreValueError, match="must have the saved shape"):
        Checkpoint(net=parts, w=np.zeros(3)).restore(tmp_path)
    assert [part.told for part in parts] == [["abort"], ["abort"]]


def test_an_engine_within_a_structure(tmp_path):
    def engine():
        table = sc.TableConfig(4, 2, initializer=sc.initializers.RowId(), name="t")
        return sc.ShardedEmbedding({"f": sc.FeatureConfig(table)}, sc.optimizers.Adagrad(0.5))

    with engine() as trained, engine() as built, engine() as unbuilt:
        trained.enqueue({"f": [[3]]})
        trained.dequeue()
        trained.apply_gradients({"f": np.ones((1, 2))})
        Checkpoint(model={"embeddings": trained, "v": pair()}).save(tmp_path, step=1)
        built.build()
        for other in (built, unbuilt):
            Checkpoint(model={"embeddings": other, "v": pair(0.0)}).restore(tmp_path)
            assert np.array_equal(other.tables["t"], trained.tables["t"])
            assert np.array_equal(other.slots["t"]["accumulators"],
                                  trained.slots["t"]["accumulators"])  # fmt: skip
            assert other.step == 1


@pytest.mark.parametrize("malformed", [3, {"v": 3}])
def test_malformed_metadata_of_a_structure(malformed):
    structure = as_checkpointable("net", {"v": pair()})
    message = (
        f"metadata of object 'net' must have a mapping of mappings as 'nested', got {malformed!r}"
    )
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        structure.checkpoint_restore({"nested": malformed}, {}, slots="load")


# independent_buffers


def test_create_variable_makes_a_component_per_device(tmp_path):
    with independent_buffers(["left", "right"]) as devices:
        v = sc.create_variable((4, 2), num_shards=2, name="w", seed=3)
    assert devices == ("left", "right")
    assert isinstance(v, ParallelVariable)
    assert (v.name, v.devices, v.shape) == ("w", devices, (4, 2))
    plain = sc.create_variable((4, 2), num_shards=2, name="w", seed=3)
    assert isinstance(plain, sc.ShardedVariable)
    for component in v:
        assert component.layout == plain.layout
        assert np.array_equal(component, plain)
    v.components[0][...] = -1
    v.components[1][...] = 3
    checkpoint = Checkpoint(v=v)
    checkpoint.save(tmp_path, step=1)
    for component in v:
        component[...] = 0
    checkpoint.restore(tmp_path)
    assert [set(x.ravel().tolist()) for x in v.unpack()] == [{-1}, {3}]


def test_options_reach_the_variables(tmp_path):
    with independent_buffers(2, primary_only=True, partial_restore=True):
        v = sc.create_variable(1, initializer=[5.0])
    path = Checkpoint(v=v).save(tmp_path, step=1)
    assert len(list(path.glob("*.safetensors"))) == 1
    assert v.devices == ("device:0", "device:1")


def test_arguments_are_checked_as_ever_inside():
    with independent_buffers(2):
        with pytest.raises(ShardcoreValueError, match="shape must have at least one axis"):
            sc.create_variable(())
        assert isinstance(sc.create_variable(2), ParallelVariable)


def test_it_cannot_be_entered_within_itself_and_ends_with_an_error():
    message = "independent_buffers must not be entered within itself"
    with independent_buffers(2):
        with pytest.raises(ShardcoreRuntimeError, match=message), independent_buffers(3):
            pass
        assert len(sc.create_variable(1)) == 2
    with pytest.raises(ZeroDivisionError), independent_buffers(2):
        raise ZeroDivisionError
    assert isinstance(sc.create_variable(1), sc.ShardedVariable)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"devices": 0}, ShardcoreValueError, "devices must be an integer >= 1, got 0"),
        ({"devices": 1, "primary_only": 1}, ShardcoreTypeError, "primary_only must be a bool"),
        (
            {"devices": 1, "partial_restore": 1},
            ShardcoreTypeError,
            "partial_restore must be a bool",
        ),
    ],
)
def test_messages_of_independent_buffers(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)), independent_buffers(**arguments):
        pass


def test_it_holds_for_its_own_thread_and_task():
    made = {}
    entered, done = threading.Event(), threading.Event()

    def inside():
        with independent_buffers(3):
            entered.set()
            assert done.wait(10)
            made["inside"] = sc.create_variable(1)

    thread = threading.Thread(target=inside)
    thread.start()
    assert entered.wait(10)
    made["outside"] = sc.create_variable(1)
    done.set()
    thread.join()
    assert isinstance(made["inside"], ParallelVariable)
    assert isinstance(made["outside"], sc.ShardedVariable)

    async def task(devices):
        if devices is None:
            await asyncio.sleep(0)
            return sc.create_variable(1)
        with independent_buffers(devices):
            await asyncio.sleep(0)
            return sc.create_variable(1)

    async def tasks():
        return await asyncio.gather(task(2), task(None), task(4))

    two, plain, four = asyncio.run(tasks())
    assert (len(two), len(four)) == (2, 4)
    assert isinstance(plain, sc.ShardedVariable)
