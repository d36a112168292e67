"""Several processes over loopback: the same numbers, the same errors, and an end for the stuck."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from shardcore_pjrt.backend import PjrtBackend
from shardcore_pjrt.mesh.batch_parts import batch_parts, update_parts
from shardcore_pjrt.mesh.processes import processes_of

import shardcore as sc
from shardcore.backend import FeatureBags, TableBatch, TableUpdate

WORKERS = Path(__file__).parent / "workers"
PAGE = Path(__file__).parents[2] / "docs" / "several-processes.md"
STEPS = 40
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored

TRAINING = "--xla_cpu_collective_timeout_seconds=10"  # as the recipe sets it


def module(name):
    spec = importlib.util.spec_from_file_location(name, WORKERS / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


model = module("model")
running = module("running")
environment, run, told = running.environment, running.run, running.told


def files(step):
    return {path.name: path.read_bytes() for path in sorted(step.iterdir())}


# --- the same numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "devices", "exchange", "steps"),
    [(2, 1, "gather", []), (2, 2, "all_to_all", [0, 1]), (4, 1, "gather", [1, 2])],
)
def test_processes_give_the_numbers_and_checkpoints_of_one(
    processes, devices, exchange, steps, tmp_path
):
    options = {"exchange": exchange}
    settings = {"options": options, "steps": steps}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with model.make_engine("cpu") as e:
        model.train(e, range(7, 9), np.asarray, np.asarray)
        begun = model.contents(e)
        sc.Checkpoint(embedding=e, dense={"bias": np.arange(3.0)}).save(tmp_path / "from-cpu", 2)
    run("trains", tmp_path, processes, devices, limit=30)

    with model.make_engine(options={"devices": processes * devices, **options}) as e:
        checkpoint = sc.Checkpoint(embedding=e, dense={"bias": np.zeros(3)})
        checkpoint.restore(tmp_path / "from-cpu")
        expected = {f"restored {name}": array for name, array in begun.items()}
        expected |= model.train(e, steps, jax.numpy.asarray, np.asarray)
        of_one = checkpoint.save(tmp_path / "of-one", e.step)
    for number in range(processes):
        with np.load(tmp_path / f"found-{number}.npz") as found:
            assert set(found) == set(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, err_msg=name)
    saved = tmp_path / "saved" / f"step-{2 + len(steps):08d}"
    assert files(saved) == files(of_one)
    for backend, hosts in (("cpu", {}), ("sim", {"hosts": 3})):
        with model.make_engine(backend, hosts) as e:
            sc.Checkpoint(embedding=e, dense={"bias": np.zeros(3)}).restore(saved)
            for name, array in model.contents(e).items():
                np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_batches_are_read_where_that_is_asked_for():
    def parts(ids, content):
        bags = FeatureBags(np.array(ids), np.array([0, len(ids)]))
        gradients = (np.array([[float(ids[0])]]),)
        update = TableUpdate(TableBatch("t", (bags,)), gradients, (0.5,), 1)
        return [*batch_parts([update.batch], content), *update_parts([update], content)]

    def differ(one, other, content):
        pairs = zip(parts(one, content), parts(other, content), strict=True)
        return {name for (name, own), (_, given) in pairs if not np.array_equal(own, given)}

    assert differ([1, 2], [3, 4], content=False) == set()
    assert differ([1, 2], [3, 4, 5], content=False) == {"ids of feature 0 of table 't'"}
    assert differ([1, 2], [3, 4], content=True) == {
        "ids of feature 0 of table 't'",
        "gradient 0 of table 't'",
    }


def test_one_process_has_nobody_to_agree_with():
    def parts():
        raise AssertionError("nothing is compared")
        yield

    backend = PjrtBackend("cpu", 2)
    assert backend.process_group is None
    processes_of(backend.mesh).agree("lookup", parts())


# --- the same errors -----------------------------------------------------------------------------


def differs(call, what):
    return (
        f"ShardcoreValueError: {call} must be given the same in every process, "
        f"but process 1 has not the {what} of process 0"
    )


ONE_THREAD = (
    "ShardcoreRuntimeError: over several processes all calls must come from one thread, since each "
    "of them starts device programs in one order (so pipeline must be False): lookup came from "
    "{!r}, create_table from 'MainThread'"
)
STUCK = (
    "ShardcoreRuntimeError: lookup: another process is dead or stuck, or did not come to this call "
    "within the time limit of collectives: "
)
REFUSED = {
    "no time limit": [
        "devices of platform 'cpu' wait for ever for a process that is stuck: start every process "
        "with XLA_FLAGS=--xla_cpu_collective_timeout_seconds=60 or the like"
    ],
    "one device": "ShardcoreValueError: table 't' must have placement 'row', 'column' or "
    "'replicated' on backend 'pjrt', got 'table'",
    "options": differs("create_table", "options of the backend"),
    "settings": differs("create_table", "settings of table 't'"),
    "optimizer": differs("create_table", "optimizer of table 't'"),
    "initial values": differs("create_table", "initial rows of table 't'"),
    "another size": differs("lookup", "ids of feature 0 of table 't'"),
    "check": differs("create_table", "options of the backend"),
    "ids": differs("lookup", "ids of feature 0 of table 't'"),
    "number of bags": differs("lookup", "ids of feature 0 of table 't'"),
    "weights": differs("lookup", "weights of feature 0 of table 't'"),
    "divisors": differs("lookup", "divisors of feature 0 of table 't'"),
    "gradients": differs("apply", "gradient 0 of table 't'"),
    "learning rate": differs("apply", "hyper-parameters of table 't'"),
    "step": differs("apply", "step of table 't'"),
    "gradient on some devices": "ShardcoreValueError: gradients['a'] must lie on all 4 devices of "
    "the backend's mesh, or be of this process alone: it lies on 2 devices of several",
    "rows": differs("gather", "rows of table 't'"),
    "values": differs("scatter", "values of table 't'"),
    "calls": "ShardcoreRuntimeError: all processes must make the same calls in the same order: "
    "process 0 came to 'gather', process 1 came to 'lookup'",
    "parts": differs("a call", "number of parts"),
    "unchanged": [0.0, 0.0, 1.0],
    "backwards": [-1.0, -5.0, -8.0, -10.0, -13.0, -16.0, -19.0, -22.0],
    "its own": [-2.0, -10.0, -17.0, -23.0, -30.0, -37.0, -44.0, -51.0],
    "not finite": "UpdateRefusedError: step 4 was refused: "
    "gradients['a'] must be finite in float32: gradients['a'][1, 2] = nan",
    "afterwards": [0.0, -8.0, -15.0],
    "another thread": ONE_THREAD.format("reader"),
    "pipeline": "ShardcoreRuntimeError: enqueue failed in the background, and what was called "
    "after it was dropped: " + ONE_THREAD.format("shardcore-pipeline"),
}


def test_processes_that_disagree_are_told(tmp_path):
    run("refuses", tmp_path, 2, 2)
    first, second = told(tmp_path, 2)
    assert first.pop("devices of others") == "nothing raised"  # they are its own
    assert second.pop("devices of others") == (
        "ShardcoreValueError: devices must hold at least one of this process, which is process 1: "
        "those given are of process 0"
    )
    assert first == second == REFUSED


def test_a_checkpoint_is_of_all_processes_or_of_none(tmp_path):
    run("fails_to_save", tmp_path, 2, 1)
    first, second = told(tmp_path, 2)
    root = tmp_path / "root"
    full = f"step 1 was not committed to {root}: [Errno 28] No space left on device"
    exists = f"step 1 already exists in {root}, with another content"
    damage = "a block does not match its checksum"
    nothing = f"root {tmp_path / 'nothing'} holds no step"
    alone = {
        "disk full": ("NotCommittedError", 0, "save", full),
        "no memory": ("MemoryError", 1, "gather", "none"),
        "another content": ("ShardcoreValueError", 0, "save", exists),
        "damage": ("CorruptCheckpointError", 1, "scatter", damage),
        "missing": ("ShardcoreOSError", 1, "restore", nothing),
    }
    found = first, second
    for name, (kind, where, call, text) in alone.items():
        assert found[where].pop(name) == f"{kind}: {text}"
        hearsay = f"{kind}: {call}: process {where} failed: {text}"
        if kind == "MemoryError":  # of no kind of shardcore's
            hearsay = f"ShardcoreRuntimeError: {call}: process {where} failed: {kind}: {text}"
        assert found[1 - where].pop(name) == hearsay
    assert first.pop("left") == []  # of the saves that failed
    for own in found:
        assert own.pop("seconds") > 6  # longer than the time limit
        for peak in own.pop("peaks"):
            assert peak < 72 << 20  # of a table of 128 MiB
    assert first.pop("stuck").startswith(STUCK)
    assert first.pop("waited") < 12
    assert first == second == {
        "dense": differs("save", "dense/w"),
        "steps": differs("save", "step"),
        "devices": "ShardcoreValueError: objects of one checkpoint must be held by the same "
        "devices of several processes: 'model' and 'other' are not",
        "calls": "ShardcoreRuntimeError: all processes must make the same calls in the same order: "
        "process 0 came to 'save', process 1 came to 'lookup'",
        "slow disk": "nothing raised",
        "again": "nothing raised",
        "slow read": "nothing raised",
        "restored": [0.0, 1.0, 2.0],
        "another step": differs("restore", "step"),
        "unchanged": [0.0, 1.0, 2.0],
    }  # fmt: skip


# --- the dead and the stuck ----------------------------------------------------------------------


class Supervised:
    """A training run under workers/supervise.py."""

    def __init__(self, root):
        self.root = root
        self.errors = root.with_suffix(".log")
        command = [sys.executable, str(WORKERS / "supervise.py"), "2", str(WORKERS / "train.py")]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, str(root), str(STEPS)],
                env=environment(""),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.process.send_signal(signal.SIGINT)  # which makes it end its processes
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def line(self, word):
        """Return the next line of the supervisor that begins with a word, without that."""
        for line in self.process.stdout:
            words = line.split()  # none where a library in the processes printed an empty line
            if words[:1] == [word]:
                return words[1:]
        raise AssertionError(f"the supervisor ended without a word: {self.errors.read_text()}")

    def wait_for_step(self, step):
        end = time.monotonic() + 60
        while not (self.root / f"step-{step:08d}").exists():
            assert time.monotonic() < end, self.errors.read_text()
            time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed") / "root"
    with Supervised(root) as run:
        run.line("started")
        assert run.line("ended") == ["0", "0"]
        assert run.process.wait(10) == 0
    return files(root / f"step-{STEPS:08d}")


@pytest.mark.parametrize(
    ("signal_number", "victim", "limit"),
    [(signal.SIGKILL, 1, 12), (signal.SIGKILL, 0, 12), (signal.SIGSTOP, 1, 20)],
    ids=["killed", "first killed", "stopped"],
)
def test_a_run_goes_on_from_its_last_checkpoint(
    signal_number, victim, limit, undisturbed, tmp_path
):
    with Supervised(tmp_path / "root") as run:
        pids = [int(pid) for pid in run.line("started")]
        run.wait_for_step(10)
        os.kill(pids[victim], signal_number)
        begun = time.monotonic()
        codes = run.line("ended")
        assert time.monotonic() - begun < limit
        assert codes[victim] == ("None" if signal_number == signal.SIGSTOP else "-9")
        errors = run.errors.read_text()
        if codes[1 - victim] == "1":
            told = r"Gloo [\w-]+ failed: .*(by peer|Timed out|timeout caused)"
            assert re.search(told, errors), errors
        else:  # without a coordinator JAX may end the process before its error is raised
            assert (victim, codes[1]) == (0, "-6"), errors
        assert len(sc.checkpoint.steps(run.root)) < STEPS // 5
        run.line("started")
        assert run.line("ended") == ["0", "0"]
        assert run.process.wait(10) == 0
        assert files(run.root / f"step-{STEPS:08d}") == undisturbed


@pytest.mark.skipif(not PAGE.is_file(), reason="the documents are not beside these tests")
def test_the_page_shows_the_programs_that_are_tested():
    page = PAGE.read_text(encoding="utf-8")
    shown = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    assert shown == {
        name: (WORKERS / name).read_text(encoding="utf-8")
        for name in ("train.py", "supervise.py", "joined.py")
    }


@pytest.mark.skipif(not PAGE.is_file(), reason="the documents are not beside these tests")
def test_the_page_shows_the_errors_that_are_raised():
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^```text\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE) == [
        REFUSED["ids"].replace("'t'", "'items'"),
        REFUSED["calls"],
        "ShardcoreIndexError: process 1: features['a']: ids[2] = 25 is outside table 'items': "
        "must be in [0, 20)",  # as test_own_samples.py has it
        f"{STUCK}...",
    ]


# --- how long they take --------------------------------------------------------------------------


def test_the_benchmark_of_two_processes_compares_what_they_trained():
    command = [sys.executable, "-m", "bench.jax_processes"]
    sizes = ["--rounds", "1", "--steps", "1", "--samples", "201"]  # 101 for one
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, *sizes], cwd=root, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| two processes, a device each \| [\d.]+ ms \|", done.stdout, re.M)
    assert re.search(r"^ratio [\d.]+, [\d.]+ to [\d.]+$", done.stdout, re.M)
