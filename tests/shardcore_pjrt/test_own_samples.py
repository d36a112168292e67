"""Several processes, each with its own samples: the numbers of one batch, the errors of all."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

import shardcore as sc

pytest.importorskip("jax", reason="jax is not installed")

WORKERS = Path(__file__).parent / "workers"


def module(name):
    spec = importlib.util.spec_from_file_location(name, WORKERS / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


model = module("model")
running = module("running")


def run(case, folder, processes, devices, **settings):
    running.run(case, folder, processes, devices, program="own_cases.py", **settings)


# --- the same numbers ----------------------------------------------------------------------------


def joined(batches):
    """Return the batches of several processes as one: features, weights and gradients."""
    features, weights, gradients = {}, {}, {}
    for name in batches[0][0]:
        own = [batch[0][name] for batch in batches]
        if isinstance(own[0], sc.Ragged):
            features[name] = sc.Ragged.from_lists([ids for one in own for ids in one.to_lists()])
        else:
            features[name] = np.concatenate(own)
        gradients[name] = np.concatenate([batch[2][name] for batch in batches])
    weights = {**batches[0][1], "bought": np.concatenate([one[1]["bought"] for one in batches])}
    return features, weights, gradients


def expected(sizes, last):
    """Return per process what it is to see, and what is left in the tables."""
    found = [{} for _ in last]
    with model.make_engine("cpu") as e:
        for step, of_step in enumerate(sizes):
            batches = [model.make_batch(100 * step + at, n) for at, n in enumerate(of_step)]
            features, weights, gradients = joined(batches)
            lookup = e.lookup(features, weights)
            for name, array in lookup.activations.items():
                parts = np.split(array, np.cumsum(of_step)[:-1])
                for own, part in zip(found, parts, strict=True):
                    own[f"activations {step} {name}"] = part
            of_weights = lookup.apply_gradients(gradients, weight_gradients=True)["bought"]
            ends = np.cumsum([batch[1]["bought"].size for batch in batches])
            for own, part in zip(found, np.split(of_weights, ends[:-1]), strict=True):
                own[f"weights {step}"] = part
        pairs = []
        for half in (0, 1):
            batches = [model.make_batch(900 + 10 * half + at, n) for at, n in enumerate(last)]
            features, weights, gradients = joined(batches)
            pairs.append((e.lookup(features, weights), {**gradients, "seen": None}))
        e.apply(pairs)
        left = model.contents(e) | {"unique_rows": np.array(e.metrics()["unique_rows"])}
    return [own | left for own in found]


@pytest.mark.parametrize(
    ("processes", "devices", "options"),
    [
        (2, 1, {}),
        (2, 2, {}),
        (3, 1, {"exchange": "gather"}),
        (2, 1, {"lanes": 128}),
    ],
)
def test_own_samples_give_the_numbers_of_one_batch(processes, devices, options, tmp_path):
    rng = np.random.default_rng(processes * devices)
    sizes = rng.integers(1, 14, (3, processes)).tolist()
    sizes[1][-1] = 0  # a process without samples
    sizes[2] = [8] * processes
    last = [3] * (processes - 1) + [5]
    order = list(range(processes * devices))
    if devices > 1:  # those of a process need not be side by side
        order = order[::2] + order[1::2]
    settings = {"options": options, "order": order, "sizes": sizes, "last": last}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    run("trains", tmp_path, processes, devices, limit=30, patience=280)
    for number, wanted in enumerate(expected(sizes, last)):
        with np.load(tmp_path / f"found-{number}.npz") as found:
            assert set(found) == set(wanted)
            for name, array in wanted.items():
                close = 2e-2 if "day" in name or "when" in name else 1e-5  # bfloat16
                np.testing.assert_allclose(
                    found[name], array, rtol=close, atol=close, err_msg=f"{number}: {name}"
                )


# --- the same errors -----------------------------------------------------------------------------


def of(process, kind, text, call=""):
    """Return an error as all are told it, of at most 484 bytes before the process is named."""
    kept = f"{kind}: {text}".encode()[:484].decode().partition(": ")[2]
    return f"{kind}: {call}process {process}: {kept}"


def differs(call, what):
    return (
        f"ShardcoreValueError: {call} must be given the same in every process, "
        f"but process 1 has not the {what} of process 0"
    )


def outside(process, place, value, call=""):
    told = f"features['a']: ids[{place}] = {value} is outside table 't': must be in [0, 20)"
    return of(process, "ShardcoreIndexError", told, call)


UNREADABLE = "features['a']: ids cannot be read as a NumPy array: MemoryError: "
NOT_FINITE = "gradients['a'] must be finite in float32: gradients['a']"
REFUSED = {
    "options": differs("create_table", "options of the backend"),
    "id": outside(1, 2, 25),
    "id of a reader": outside(0, 1, 20),
    "ids of both": outside(0, 0, 30),
    "named": outside(1, 1, -1, "enqueue 'train': "),
    "no array": of(0, "ShardcoreTypeError", f"{UNREADABLE}no memory"),
    "long": of(0, "ShardcoreTypeError", UNREADABLE + "x" * 1000),
    "no engine's": "ShardcoreRuntimeError: process 1: MemoryError: no room for bags",
    "in flight": 0,
    "step": "nothing raised",
    "rows": [0.0, -0.5, 1.0, 2.5],
    "not finite": of(1, "ShardcoreValueError", f"{NOT_FINITE}[1, 2] = inf"),
    "after all": "nothing raised",
    "shape": of(
        0,
        "ShardcoreValueError",
        "gradients['a'] must have the shape of the activations, (1, 4), got (1, 2)",
    ),
    "kinds": differs("apply", "kind of gradient 0 of table 't'"),
    "none in one": differs("apply", "kind of gradient 0 of table 't'"),
    "after those": "nothing raised",
    "rate": differs("apply", "hyper-parameters of table 't'"),
    "no rate": of(
        1,
        "ShardcoreTypeError",
        "learning_rate() must return a number >= 0, finite as float32, got 'fast'",
    ),
    "of all devices": of(
        0,
        "ShardcoreValueError",
        "gradients['a'] must be of this process alone, as its samples are: it lies on 4 devices of "
        "several",
    ),
    "pair": of(1, "ShardcoreValueError", f"pairs[1]: {NOT_FINITE}[0, 0] = nan"),
    "unchanged": [0.0, -3.5, -1.0, 1.5],
    "changed": [0.0, -5.0, -2.0, 1.0],
    "many numbers": [2, 100, 0, 99, 1, 100],
    "later": "nothing raised",
    "not finite on devices": "UpdateRefusedError: step 5 was refused: process 1: "
    f"{NOT_FINITE}[1, 2] = inf",
    "afterwards": [0.0, -5.0, -2.0, 1.0],
    "features": differs("lookup", "tables and features"),
    "calls": "ShardcoreRuntimeError: all processes must make the same calls in the same order: "
    "process 0 came to 'gather', process 1 came to 'lookup'",
    "at last": "nothing raised",
    "end": [0.0, -6.5, -3.0, 0.5],
}


def test_all_processes_are_told_what_one_refuses(tmp_path):
    run("refuses", tmp_path, 2, 2)
    first, second = running.told(tmp_path, 2)
    assert first == second == REFUSED


def test_a_process_that_is_killed_ends_the_others(tmp_path):
    run("dies", tmp_path, 2, 1, ends=[0, -9])
    found = json.loads((tmp_path / "told-0.json").read_text())
    assert re.match(
        re.escape("ShardcoreRuntimeError: lookup: another process is dead or stuck, or did not ")
        + "come to this call within the time limit of collectives: ",
        found["raised"],
    )
    assert found["seconds"] < 12
