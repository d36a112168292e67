"""The estimates of many hosts: equal to what the simulated cluster counts, where it can count."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from shardcore_sim import simulate as command
from shardcore_sim.backend import SimBackend
from shardcore_sim.cost import CostModel
from shardcore_sim.estimate import Estimate, simulate
from shardcore_sim.report import imbalance

import shardcore as sc
from shardcore.errors import (
    ShardcoreOSError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UnavailableError,
)
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.planning.model_file import example_model, load_model

SMALL = """
batch = 37
optimizer = "Adagrad"
ids = "zipf:1.1"
[[table]]
name = "a"
rows = 60
dim = 6
hot = 4
[[table]]
name = "b"
rows = 3
dim = 9
[[table]]
name = "c"
rows = 1000
dim = 20
hot = 2
dtype = "float16"
"""


def counted(model, hosts, cost, seed):
    """Do the step that is estimated."""
    backend = SimBackend(hosts, cost=cost)
    features, ids = [], []
    for number, table in enumerate(model.tables):
        spec = table.spec
        config = TableConfig(
            spec.num_rows, spec.dim, name=spec.name, dtype=spec.dtype, combiner="sum",
            layout=spec.layout, placement=spec.placement, exchange=spec.exchange,
            optimizer=spec.optimizer,
        )  # fmt: skip
        features.append(FeatureConfig(config))
        rng = np.random.default_rng((seed, number))
        drawn = model.ids.draw(rng, model.batch * table.hot, spec.num_rows)
        ids.append(drawn.reshape(-1, table.hot))
    e = sc.ShardedEmbedding(features, backend=backend)
    if model.tables[0].spec.optimizer is None:
        e(ids)
        return backend, backend.simulated_seconds
    e.enqueue(ids)
    out = e.dequeue()
    looked = backend.simulated_seconds
    e.apply_gradients(out)
    return backend, looked


@pytest.mark.parametrize("layout", ["div", "mod"])
@pytest.mark.parametrize("exchange", ["exact", "partial"])
@pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
def test_estimates_of_few_hosts_are_what_the_cluster_counts(write, placement, exchange, layout):
    path = write(SMALL)
    model = load_model(path, {"placement": placement, "exchange": exchange, "layout": layout})
    cost = CostModel(latency=3e-6, bandwidth=1e9, row_latency=2e-8, memory_bandwidth=3e9,
                     sort_seconds=1e-8)  # fmt: skip
    hosts = [1, 2, 3, 8]
    for estimate, count in zip(simulate(model, hosts, cost, seed=5), hosts, strict=True):
        backend, looked = counted(model, count, cost, seed=5)
        report = backend.report()
        assert estimate.hosts == count
        assert estimate.messages == report.messages.sum()
        assert estimate.bytes == report.bytes.sum()
        busiest = max(report.bytes.sum(0).max(), report.bytes.sum(1).max())
        assert estimate.busiest_bytes == busiest
        assert estimate.row_imbalance == pytest.approx(imbalance(report.host_rows))
        assert estimate.host_bytes == report.host_bytes.max()
        assert estimate.lookup_seconds == pytest.approx(looked, rel=1e-9)
        assert estimate.step_seconds == pytest.approx(backend.simulated_seconds, rel=1e-9)


def test_a_model_with_row_counts_for_three_hosts(write):
    text = SMALL.replace('name = "a"', 'name = "a"\nlayout = [50, 0, 10]')
    model = load_model(write(text))
    assert model.tables[0].spec.layout == (50, 0, 10)
    (estimate,) = simulate(model, [3], CostModel(), seed=5)
    report = counted(model, 3, CostModel(), seed=5)[0].report()
    assert estimate.messages == report.messages.sum()
    assert estimate.bytes == report.bytes.sum()
    assert estimate.row_imbalance == pytest.approx(imbalance(report.host_rows))
    (even,) = simulate(load_model(write(SMALL)), [3], CostModel(), seed=5)
    assert estimate.row_imbalance > even.row_imbalance
    message = (
        "table 'a': row counts must be one for each of 2 shards and sum to 60, got 3 that sum to 60"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        simulate(model, [2], CostModel())


def test_lookups_alone(write):
    model = load_model(write(SMALL), {"optimizer": ""})
    for estimate, count in zip(simulate(model, [1, 4]), (1, 4), strict=True):
        backend, looked = counted(model, count, None, seed=0)
        assert estimate.apply_seconds == 0
        assert estimate.bytes == backend.exchange.bytes.sum()
        assert estimate.step_seconds == pytest.approx(looked)


@pytest.mark.parametrize("exchange", ["exact", "partial"])
@pytest.mark.parametrize("placement", ["row", "column", "replicated"])
def test_estimates_of_more_hosts_are_close(write, placement, exchange):
    """24 hosts, of which 8 are looked at."""
    text = SMALL.replace("37", "960").replace('"zipf:1.1"', '"uniform"')
    model = load_model(write(text), {"placement": placement, "exchange": exchange})
    (estimate,) = simulate(model, [24])
    backend, looked = counted(model, 24, None, seed=0)
    report = backend.report()
    assert estimate.bytes == pytest.approx(report.bytes.sum(), rel=0.03)
    assert estimate.messages == pytest.approx(report.messages.sum(), rel=0.03)
    assert estimate.lookup_seconds == pytest.approx(looked, rel=0.05)
    assert estimate.step_seconds == pytest.approx(backend.simulated_seconds, rel=0.05)
    assert estimate.host_bytes == report.host_bytes.max()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux counts of a process")
def test_the_whole_range_of_the_example_takes_less_than_a_minute_and_no_tables():
    program = """
import resource, sys
from shardcore_sim.simulate import main
code = main([])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_maxrss, used.ru_utime + used.ru_stime, file=sys.stderr)  # KiB, seconds of work
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    peak, seconds = done.stderr.split()
    assert float(seconds) < 60
    assert int(peak) < 2 << 20  # the tables are 195 GiB
    lines = done.stdout.splitlines()
    assert lines[0] == "26 tables, 204184588 rows, batch 65536, ids zipf:1.05"
    assert lines[3].split() == [
        *("hosts", "step", "ms", "lookup", "ms", "apply", "ms", "traffic", "MB"),
        *("busiest", "host", "MB", "messages", "imbalance", "memory", "GB"),
    ]
    rows = [line.split() for line in lines[4:]]
    assert [int(row[0]) for row in rows] == [2**power for power in range(13)]
    assert (rows[0][4:7], rows[0][8]) == (["0.00", "0.00", "0"], "209.085")
    assert float(rows[3][1]) < float(rows[0][1]) / 4  # 8 hosts are 4 times as fast as one
    assert float(rows[12][7]) > 8  # hot rows of small tables


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hosts": [1, 0]}, ShardcoreValueError, "hosts[1] must be an integer >= 1, got 0"),
        ({"seed": -1}, ShardcoreValueError, "seed must be an integer >= 0, got -1"),
        ({"cost": 1}, ShardcoreTypeError, "cost must be a CostModel or None, got 1"),
    ],
)
def test_messages_of_simulate(write, options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        simulate(load_model(write(SMALL)), **options)


# --- the command ---------------------------------------------------------------------------------

ONE = Estimate(2, 0.5, 0.25, 12, 3_000_000, 2_000_000, 1.5, 4 * 10**9, fits=False)


def test_text():
    assert command.as_text([ONE]) == (
        "hosts  step ms  lookup ms  apply ms  traffic MB  busiest host MB  messages  imbalance"
        "         memory GB\n"
        "    2  750.000    500.000   250.000        3.00             2.00        12       1.50"
        "  4.000 (too much)"
    )


def test_memory_says_what_fits(write):
    model = load_model(write(SMALL))
    one, two = simulate(model, [1, 2], CostModel(memory=150_000))
    assert one.host_bytes == 60 * 6 * 8 + 3 * 9 * 8 + 1000 * 20 * 6
    assert one.fits
    assert two.fits
    (one,) = simulate(model, [1], CostModel(memory=one.host_bytes - 1))
    assert not one.fits


def test_command(write, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    arguments = [str(write(SMALL)), "--hosts", "1,3", "--batch", "20", "--ids", "reuse:2022"]
    arguments += ["--placement", "column", "--exchange", "partial", "--layout", "mod"]
    assert command.main([*arguments, "--picture", str(picture), "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "3 tables, 1063 rows, batch 20, ids reuse:2022",
        "latency 5.0 us, network 12.5 GB/s, memory 20.0 GB/s and 10.0 ns a row, "
        "sorting 10.0 ns an id",
    ]
    assert len(lines) == 6
    model = load_model(write(SMALL), {"batch": 20, "ids": "reuse:2022", "placement": "column",
                                      "exchange": "partial", "layout": "mod"})  # fmt: skip
    shown = command.as_text(simulate(model, [1, 3], seed=3))
    assert lines[3:] == shown.splitlines()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_command_calibrates(write, monkeypatch, capsys):
    monkeypatch.setattr(command, "calibrate", lambda: CostModel(row_latency=77e-9))
    assert command.main([str(write(SMALL)), "--hosts", "2", "--calibrate"]) == 0
    assert "and 77.0 ns a row" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "1,x"],
         "--hosts must be integers >= 1 with commas between them, got '1,x'"),
        (["--hosts", "0"], "hosts[0] must be an integer >= 1, got 0"),
        (["nothing.toml"], "model nothing.toml cannot be read: "),
    ],
)  # fmt: skip
def test_messages_of_the_command(arguments, message, capsys):
    assert command.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"simulate: error: {message}")


def test_pictures_that_cannot_be(tmp_path, monkeypatch):
    with pytest.raises(ShardcoreValueError, match=r"picture .*x\.abc cannot be drawn: "):
        command.picture([ONE], tmp_path / "x.abc")
    with pytest.raises(ShardcoreOSError, match=r"picture .*x\.png cannot be written: "):
        command.picture([ONE], tmp_path / "none" / "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = "a picture needs the package matplotlib; pip install 'matplotlib>=3.8' 'tqdm>=4.66'"
    with pytest.raises(UnavailableError, match=re.escape(message)):
        command.picture([ONE], tmp_path / "x.png")


def test_the_command_runs_as_a_module():
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "shardcore_sim.simulate", "--help"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0
    assert "usage: python -m shardcore_sim.simulate" in done.stdout
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert parser.parse_args([]).model is None
    assert example_model().is_file()
