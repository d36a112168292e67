"""One process, with samples of its own, of a test: ``own_cases.py CASE FOLDER PROCESS ...``."""

import json
import os
import signal
import time
from dataclasses import replace

import jax
import numpy as np
from cases import engine, instead, raising, start, told
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from joined import of_all, of_own
from model import contents, make_batch, make_engine
from shardcore_pjrt import own_lists

import shardcore as sc


def over_own_devices(array):
    """Return a host array on the devices of this process, cut as far as that goes."""
    mesh = Mesh(np.array(jax.local_devices()), ("batch",))
    cut = PartitionSpec("batch") if len(array) % mesh.size == 0 else PartitionSpec()
    return jax.device_put(array, NamedSharding(mesh, cut))


def by_one_model(activations, gradients):
    """Return gradients as a model over all devices makes them of the activations of all."""
    sharding = NamedSharding(Mesh(np.array(jax.devices("cpu")), ("batch",)), PartitionSpec("batch"))
    model = jax.jit(lambda seen, given: given + 0 * seen.sum())  # needs all samples
    found = {}
    for name, own in activations.items():
        given = over_own_devices(gradients[name])
        found[name] = of_own(model(of_all(own, sharding), of_all(given, sharding)), own)
    return found


def trains(folder):
    """Train with samples of this process alone, and write down what it sees."""
    settings = json.loads((folder / "settings.json").read_text())
    me, own = jax.process_index(), set(jax.local_devices())
    found = {}
    devices = [jax.devices("cpu")[at] for at in settings["order"]]
    options = {"batches": "own", "devices": devices, **settings["options"]}
    with make_engine(options=options) as e:
        for step, sizes in enumerate(settings["sizes"]):
            features, weights, gradients = make_batch(100 * step + me, sizes[me])
            lookup = e.lookup(features, weights)
            again = e(features, weights)
            for name, array in lookup.activations.items():
                assert isinstance(array, jax.Array)
                assert array.sharding.device_set <= own
                assert array.is_fully_addressable
                np.testing.assert_array_equal(again[name], array, err_msg=name)
                found[f"activations {step} {name}"] = np.asarray(array)
            if sizes == [8] * len(sizes):
                gradients = by_one_model(lookup.activations, gradients)
            elif step % 2:
                gradients = {name: over_own_devices(one) for name, one in gradients.items()}
            of_weights = lookup.apply_gradients(gradients, weight_gradients=True)
            found[f"weights {step}"] = np.asarray(of_weights["bought"])
        # Two lookups are one step; one feature has no gradient.
        pairs = []
        for half in (0, 1):
            features, weights, gradients = make_batch(900 + 10 * half + me, settings["last"][me])
            pairs.append((e.lookup(features, weights), {**gradients, "seen": None}))
        e.apply(pairs)
        found |= contents(e)
        found["unique_rows"] = np.array(e.metrics()["unique_rows"])
    np.savez(folder / f"found-{me}.npz", **found)


def refuses(folder):
    """Let one process give what is refused, and write down what each of them is told."""
    me = jax.process_index()
    found = {}
    rate = 1.0
    options = {"batches": "own"}
    e = engine(optimizer=sc.optimizers.SGD(lambda: rate), backend_options=options)
    other = {"backend_options": {"batches": "own" if me else "same"}}
    found["options"] = told(lambda: engine(**other))

    def rows():
        return e.tables["t"][:4, 0].tolist()

    def step(gradient=None):
        """Take a step with one sample of process 0, two of process 1; or what is raised."""
        e.enqueue({"a": [[1]] if me == 0 else [[2], [1, 3]]})
        e.dequeue()
        given = np.ones((1 + me, 4), np.float32) if gradient is None else gradient
        return told(lambda: e.apply_gradients({"a": given}))

    found["id"] = told(lambda: e.enqueue({"a": [[1], [2, 25 if me else 5]]}))
    found["id of a reader"] = told(lambda: e({"a": [[1, 20 if me == 0 else 5]]}))
    found["ids of both"] = told(lambda: e.lookup({"a": [[30 + me]]}))
    found["named"] = told(lambda: e.enqueue({"a": [[1, 5 - 6 * me]]}, name="train"))
    found["no array"] = told(lambda: e({"a": [[1]] if me else Broken()}))
    found["long"] = told(lambda: e({"a": [[1]] if me else Broken("x" * 1000)}))
    room = raising(MemoryError("no room for bags"))
    with instead(own_lists, "counts_of_bags", room if me else own_lists.counts_of_bags):
        found["no engine's"] = told(lambda: e({"a": [[1]]}))
    found["in flight"] = e.in_flight
    found["step"] = step()
    found["rows"] = rows()

    ones = np.ones((1 + me, 4), np.float32)
    spoilt = ones.copy()
    spoilt[me, 2] = np.inf
    found["not finite"] = step(spoilt if me else ones)
    found["after all"] = told(lambda: e.apply_gradients({"a": ones}))
    found["shape"] = step(ones[:, :2] if me == 0 else ones)
    found["kinds"] = told(lambda: e.apply_gradients({"a": over_own_devices(ones) if me else ones}))
    none = e._backend.apply  # by the engine it would be no call
    with instead(e._backend, "apply", lambda updates: none(without(updates) if me else updates)):
        found["none in one"] = told(lambda: e.apply_gradients({"a": ones}))
    found["after those"] = told(lambda: e.apply_gradients({"a": ones}))
    rate = 1.0 + me
    found["rate"] = step()
    rate = "fast" if me else 1.0
    found["no rate"] = told(lambda: e.apply_gradients({"a": ones}))
    rate = 1.0
    mesh = Mesh(np.array(jax.devices("cpu")), ("x",))
    of_all = jax.make_array_from_callback(
        (1 + me, 4), NamedSharding(mesh, PartitionSpec()), lambda index: ones[index]
    )
    found["of all devices"] = told(lambda: e.apply_gradients({"a": of_all}))
    pairs = [e.lookup({"a": [[1]]}), e.lookup({"a": [[1]]})]
    one = np.ones((1, 4), np.float32)
    given = [(pairs[0], {"a": one}), (pairs[1], {"a": one * (np.nan if me else 1)})]
    found["pair"] = told(lambda: e.apply(given))
    found["unchanged"] = rows()
    e.apply_gradients({"a": ones})
    found["changed"] = rows()
    numbers = e._backend.process_group.counted(
        "a call", (), range(me, me + 100)
    )  # no message has room
    found["many numbers"] = [*numbers.shape, *numbers[:, ::99].ravel().tolist()]

    # On devices a value that is not finite is found later.
    found["later"] = step(over_own_devices(spoilt if me else ones))
    found["not finite on devices"] = told(rows)
    found["afterwards"] = rows()

    found["features"] = told(
        lambda: e._backend.lookup(
            e._training._inputs.batch({"a": [[1]]}, None, bool(me), False).tables
        )
    )
    found["calls"] = told(lambda: e({"a": [[1]]}) if me else e.tables["t"][0])
    found["at last"] = step()
    found["end"] = rows()
    (folder / f"told-{me}.json").write_text(json.dumps(found))


def without(updates):
    """Return updates without their gradients."""
    return [replace(update, gradients=(None,)) for update in updates]


class Broken:
    """What no array can be made of."""

    def __init__(self, text="no memory"):
        self.text = text

    def __array__(self, *arguments, **options):
        raise MemoryError(self.text)


def dies(folder):
    """Let process 1 be killed in its third step; process 0 is told, in time."""
    me = jax.process_index()
    e = engine(backend_options={"batches": "own"})
    for number in range(4):
        if me and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        raised = told(lambda: e.enqueue({"a": [[1, 2 + me]]}))
        if number < 3:
            e.dequeue()
            e.apply_gradients({"a": np.ones((1, 4))})
    found = {"raised": raised, "seconds": time.monotonic() - begun}
    (folder / f"told-{me}.json").write_text(json.dumps(found))
    os._exit(0)  # an ordinary exit would wait for the other


if __name__ == "__main__":
    start(globals())
