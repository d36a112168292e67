"""The worked example: it learns, alike on every backend, and what is on devices stays there."""

import importlib.util
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import shardcore_pjrt.programs.refusals
from shardcore_pjrt.mesh.placing import fetched

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "dlrm.py"
if not EXAMPLE.is_file():
    pytest.skip("the documents are not beside these tests", allow_module_level=True)

spec = importlib.util.spec_from_file_location("dlrm_example", EXAMPLE)
dlrm = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dlrm)

STEPS, BATCH_SIZE = 60, 256
# Not zero: XLA sums a bag, a row's gradients and the rows of a matrix product in an order that
# depends on how they are cut over devices, the kernels of cpu and sim in order of occurrence. A sum
# of n float32 may so differ by n * 6e-8 of its terms; Adagrad, whose steps depend on gradients
# without jumps, lets that grow slowly. Measured over the 60 steps: 2.4e-7 at most.
TOLERANCE = 1e-5
FALL = 0.05  # of the held-out loss, which is 0.716 at first and then 0.639

CPU, SIM3 = ("cpu", None), ("sim", 3)
PJRT1, PJRT8 = ("pjrt", 1), ("pjrt", 8)


def on(where, platform, pipeline=False):
    """Return the example's model on (backend, devices)."""
    name, devices = where
    options = {"sim": {"hosts": devices}, "pjrt": {"platform": platform, "devices": devices}}
    engine = dlrm.engine_on(name, pipeline, **options.get(name, {}))
    return dlrm.Dlrm(engine, dlrm.ClickLog(BATCH_SIZE, seed=0))


@pytest.fixture
def devices(platform):
    """Return how many devices to use: of CPU 8, else what is there."""
    return 8 if platform == "cpu" else len(jax.devices(platform))


@pytest.fixture
def on_cpu_devices(platform):
    if platform != "cpu":
        pytest.skip("other platforms multiply matrices with less precision")


@pytest.fixture(scope="module")
def curve():
    """Return a function: (where, pipeline) -> the losses of all steps, and those held out."""
    known = {}

    def curve_of(where, pipeline=False):
        if (where, pipeline) not in known:
            model = on(where, "cpu", pipeline)
            with model.engine:
                before = model.held_out_loss()
                losses = np.array(model.train(STEPS))
                known[where, pipeline] = losses, (before, model.held_out_loss())
        return known[where, pipeline]

    return curve_of


# --- it learns, alike on every backend ------------------------------------------------------------


def test_it_learns(curve):
    losses, (before, after) = curve(CPU)
    assert after < before - FALL
    assert losses[-10:].mean() < losses[:10].mean() - FALL


@pytest.mark.usefixtures("on_cpu_devices")
@pytest.mark.parametrize("where", [PJRT1, PJRT8])
def test_the_loss_curve_is_that_of_the_backend_cpu(curve, where):
    losses, held_out = curve(where)
    expected, expected_held_out = curve(CPU)
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
    np.testing.assert_allclose(held_out, expected_held_out, rtol=TOLERANCE)


def test_the_loss_curve_of_sim_is_that_of_cpu_to_the_bit(curve):
    np.testing.assert_array_equal(curve(SIM3)[0], curve(CPU)[0])


@pytest.mark.usefixtures("on_cpu_devices")
@pytest.mark.parametrize("where", [CPU, SIM3, PJRT1, PJRT8])
def test_a_pipeline_changes_no_bit_of_the_curve(curve, where):
    losses, held_out = curve(where, pipeline=True)
    np.testing.assert_array_equal(losses, curve(where)[0])
    assert held_out == curve(where)[1]


def test_another_seed_is_another_curve(curve):
    other = dlrm.Dlrm(dlrm.engine_on("cpu"), dlrm.ClickLog(BATCH_SIZE, seed=1), seed=1)
    with other.engine:
        losses = np.array(other.train(3))
    assert not np.allclose(losses, curve(CPU)[0][:3], rtol=100 * TOLERANCE)


@pytest.mark.usefixtures("on_cpu_devices")
@pytest.mark.parametrize("where", [CPU, SIM3, PJRT1])
def test_saved_from_eight_devices_it_goes_on_anywhere(curve, tmp_path, where):
    half = STEPS // 2
    first = on(PJRT8, "cpu")
    with first.engine:
        begun = np.array(first.train(half))
        first.save(tmp_path)
    then = on(where, "cpu")
    with then.engine:
        assert then.restore(tmp_path) == half
        ended = np.array(then.train(STEPS - half))
    np.testing.assert_allclose([*begun, *ended], curve(CPU)[0], rtol=TOLERANCE)


# --- what is on devices stays there ---------------------------------------------------------------


class Watch:
    """What crosses between host and devices while it is on, other than the verdicts.

    On devices with a memory of their own JAX's transfer guard raises where a value is read. What
    CPU devices hold can be read without a transfer, so JAX's ways to read are watched instead: of
    an array on several devices they are `_value` and its parts, for NumPy too.
    """

    def __init__(self, patch):
        self.reads, self.sent, self.verdicts = [], [], []
        array = type(jax.device_put(0))
        for name in ("_value", "addressable_shards"):
            patch.setattr(array, name, property(self._seen(name, getattr(array, name).fget)))
        patch.setattr(
            array, "addressable_data", self._seen("addressable_data", array.addressable_data)
        )
        put = jax.device_put

        def device_put(values, *where, **options):
            self.sent += [one for one in jax.tree.leaves(values) if not isinstance(one, jax.Array)]
            return put(values, *where, **options)

        patch.setattr(jax, "device_put", device_put)
        patch.setattr(shardcore_pjrt.programs.refusals, "fetched", self._verdict)

    @property
    def wide(self):
        """Arrays sent to the devices that look like activations, gradients or rows."""
        return [one for one in self.sent if one.dtype.kind == "f" and one.shape[-1:] == (dlrm.DIM,)]

    def _seen(self, name, read):
        def seen(array, *arguments):
            self.reads.append((name, array.shape, array.dtype.name))
            return read(array, *arguments)

        return seen

    def _verdict(self, array):
        """Read whether a batch's gradients were finite: the one thing that the host must know."""
        before = len(self.reads)
        with jax.transfer_guard_device_to_host("allow"):
            value = fetched(array)
        del self.reads[before:]
        self.verdicts.append((array.shape, array.dtype.name))
        return value


@pytest.fixture
def watch(monkeypatch):
    """Watch, in every thread, with JAX's guards up."""
    guards = {
        "jax_transfer_guard_device_to_host": "disallow_explicit",
        "jax_transfer_guard_host_to_device": "disallow",
        "jax_transfer_guard_device_to_device": "disallow",
    }
    before = {name: getattr(jax.config, name) for name in guards}
    with monkeypatch.context() as patch:

        def start():
            for name, level in guards.items():
                jax.config.update(name, level)
            return Watch(patch)

        yield start
    for name, level in before.items():
        jax.config.update(name, level)


def test_the_watch_sees_every_way_to_read(platform, watch):
    devices = jax.devices(platform)
    if platform != "cpu" or len(devices) < 2:
        pytest.skip("needs 2 devices of cpu")
    mesh = jax.sharding.Mesh(np.array(devices[:2]), ("x",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    by_line = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    ways = [np.asarray, np.array, jax.device_get, lambda array: array.addressable_data(0)]
    ways += [lambda array: array.tolist(), lambda array: array.addressable_shards[0].data]
    arrays = [
        jax.device_put(np.ones(2, np.float32), sharding)
        for sharding in (everywhere, by_line)
        for _ in ways
    ]
    seen = watch()
    for array, way in zip(arrays, 2 * ways, strict=True):
        seen.reads.clear()
        way(array)
        assert ((2,), "float32") in [read[1:] for read in seen.reads]


@pytest.mark.parametrize("pipeline", [False, True])
def test_nothing_of_a_step_passes_through_the_host(platform, devices, watch, pipeline):
    model = on(("pjrt", devices), platform, pipeline)
    with model.engine as engine:
        losses = model.train(20)  # programs are compiled, arrays have found their devices
        engine.metrics()  # waits for the background, and for every verdict
        seen = watch()
        losses += model.train(10)
        assert seen.reads == []
        # A verdict per step, one bool: by now those that were ready, then all. What metrics itself
        # counts is on the devices too.
        assert len(seen.verdicts) <= 10
        with jax.transfer_guard_device_to_host("allow"):
            engine.metrics()
        assert seen.verdicts == [((), "bool")] * 10
        # To the devices: lists of ids and factors of bags, hyper-parameters, and the lines of the
        # log themselves; nothing as wide as a row.
        shapes = {one.shape for one in seen.sent}
        assert (BATCH_SIZE, dlrm.NUMBERS) in shapes
        assert not seen.wide
        sizes = {
            name: bags[0].size if isinstance(bags, tuple) else bags.size
            for name, bags in model.log.batch(0).ids.items()
        }
        for one in seen.sent:
            # At most a few numbers for each id of a table, padded to the next class.
            assert one.size <= 16 * max(sizes.values()), (one.shape, one.dtype)


def test_a_round_trip_would_be_seen(platform, devices, watch):
    if platform != "cpu":
        pytest.skip("the guards of other platforms raise")
    model = on(("pjrt", devices), platform)
    step = model._step

    def by_way_of_the_host(*arguments):
        *rest, gradients = step(*arguments)
        return *rest, jax.device_get(gradients)

    model._step = by_way_of_the_host
    with model.engine:
        model.train(2)
        seen = watch()
        model.train(1)
        assert ((BATCH_SIZE, dlrm.DIM), "float32") in {read[1:] for read in seen.reads}
        assert seen.wide


def test_gradients_leave_the_step_cut_as_the_activations_are(platform, devices):
    model = on(("pjrt", devices), platform)
    with model.engine as engine:
        batch = model.log.batch(0)
        engine.enqueue(batch.ids)
        activations = engine.dequeue()
        lines = (batch.numbers, batch.clicks)
        loss, params, _, gradients = model._step(*model.dense, activations, *lines)
        assert all(isinstance(one, jax.Array) for one in activations.values())
        for name, gradient in gradients.items():
            own = {shard.device: shard.index for shard in gradient.addressable_shards}
            given = {shard.device: shard.index for shard in activations[name].addressable_shards}
            assert own == given
            assert len(set(map(str, own.values()))) == devices
        for whole in jax.tree.leaves((loss, params)):
            assert whole.is_fully_replicated
        engine.apply_gradients(gradients)


# --- the program and its page ---------------------------------------------------------------------


def printed(capsys, *options):
    dlrm.main([*options, "--steps", "4", "--batch-size", "64", "--seed", "3"])
    return capsys.readouterr().out


@pytest.mark.usefixtures("on_cpu_devices")
def test_the_program_prints_the_same_curve_for_every_backend(capsys):
    found = printed(capsys, "--backend", "cpu")
    lines = found.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "before", "step 1", "step 2", "step 3", "step 4", "after",
    ]  # fmt: skip
    numbers = [float(line.rsplit(maxsplit=1)[1]) for line in lines]
    assert 0.4 < min(numbers) < max(numbers) < 1
    assert printed(capsys, "--backend", "sim", "--devices", "2") == found
    other = printed(
        capsys, "--backend", "pjrt", "--devices", "2", "--pipeline", "--platform", "cpu"
    )
    others = [float(line.rsplit(maxsplit=1)[1]) for line in other.splitlines()]
    np.testing.assert_allclose(others, numbers, atol=2e-5)  # of what is printed, 5 digits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "cpu", "--devices", "2"], "--devices is for sim, pjrt and tpu"),
        (["--backend", "sim", "--platform", "cuda"], "--platform is for pjrt"),
        (["--steps", "0"], "must be at least 1, got 0"),
        (["--seed", "-1"], "must be at least 0, got -1"),
        (["--batch-size", "x"], "invalid"),
        (["--backend", "gpu"], "invalid choice: 'gpu'"),
    ],
)
def test_the_program_refuses(capsys, options, message):
    with pytest.raises(SystemExit):
        dlrm.main(options)
    assert message in capsys.readouterr().err


def test_the_page_shows_the_program():
    page = (ROOT / "docs" / "dlrm.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^```python\n# examples/dlrm\.py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE
    )
    program = EXAMPLE.read_text(encoding="utf-8")
    assert len(shown) >= 3
    for excerpt in shown:
        assert excerpt in program


@pytest.mark.usefixtures("on_cpu_devices")
def test_the_page_shows_the_losses_that_are_printed(curve):
    page = (ROOT / "docs" / "dlrm.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    \$ python docs/examples/dlrm.py .*\n((?:    .*\n)+)", page, re.M)
    assert re.search(r"^    before: held-out loss \d\.\d{5}\n", shown)
    assert re.search(r"^    step 300: loss (\d\.\d{5})\n    after: held-out loss (0\.\d{5})$",
                     shown.rstrip(), re.M)  # fmt: skip
    model = on(CPU, "cpu")
    with model.engine:
        found = {"before: held-out loss": model.held_out_loss()}
    losses = curve(CPU)[0]
    found |= {f"step {end}: loss": losses[end - 30 : end].mean() for end in (30, 60)}
    for words, loss in found.items():
        (number,) = re.findall(rf"^    {words} (.*)$", shown, re.M)
        assert abs(float(number) - loss) < 2e-5  # of what is printed, 5 digits
