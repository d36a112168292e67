"""Several processes, each with its own samples: the numbers of one batch, the errors of all."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

import shardcore as sc

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
    sizes = rng.integers(1, 14, (4, processes)).tolist()
    sizes[1][-1] = 0  # a process without samples
    sizes[2] = [8] * processes
    last = [3] * (processes - 1) + [5]
    settings = {"options": options, "sizes": sizes, "last": last}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    run("trains", tmp_path, processes, devices, limit=30)
    for number, wanted in enumerate(expected(sizes, last)):
        with np.load(tmp_path / f"found-{number}.npz") as found:
            assert set(found) == set(wanted)
            for name, array in wanted.items():
                close = 2e-2 if "day" in name or "when" in name else 1e-5  # bfloat16
                np.testing.assert_allclose(
                    found[name], array, rtol=close, atol=close, err_msg=f"{number}: {name}"
                )


# --- the same errors -----------------------------------------------------------------------------


def of(process, error):
    kind, _, text = error.partition(": ")
    return f"{kind}: process {process}: {text}"


def differs(call, what):
    return (
        f"ShardcoreValueError: {call} must be given the same in every process, "
        f"but process 1 has not the {what} of process 0"
    )


def outside(place, value):
    return f"ShardcoreIndexError: features['a']: {place} = {value} is outside table 't' of 20 rows"


REFUSED = {
    "options": differs("create_table", "options of the backend"),
}


def test_all_processes_are_told_what_one_refuses(tmp_path):
    run("refuses", tmp_path, 2, 2)
    first, second = running.told(tmp_path, 2)
    assert first == second
    assert first == REFUSED


def test_a_process_that_is_killed_ends_the_others(tmp_path):
    run("dies", tmp_path, 2, 1, ends=[0, -9])
    found = json.loads((tmp_path / "told-0.json").read_text())
    assert re.match(
        re.escape("ShardcoreRuntimeError: lookup: another process is dead or stuck, or did not ")
        + "come to this call within the time limit of collectives: ",
        found["raised"],
    )
    assert found["seconds"] < 12
