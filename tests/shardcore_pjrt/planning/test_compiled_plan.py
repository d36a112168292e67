"""What is compiled for a plan, what is not, and what fits in its stead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from planned_models import SMALL, compiled_of
from shardcore_pjrt.planning import fits, plan
from shardcore_pjrt.planning.ahead_of_time import Refused
from shardcore_pjrt.planning.fits import compiled_plan, counted_plan, smallest_plan
from shardcore_pjrt.planning.topologies import topology
from shardcore_pjrt.platform import installation

from shardcore.planning.model_file import example_model, load_model

GIB = 1 << 30


def test_nothing_is_compiled_that_cannot_fit(no_compiler):
    asked = no_compiler(compiled_of)
    found = compiled_plan(load_model(example_model()), topology("v5e:2x2"))
    assert (found.compiled, found.fits, asked) == (False, False, [])


def test_two_programs_a_table(no_compiler, write):
    asked = no_compiler(compiled_of)
    told = []
    found = compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"), tell=told.append)
    assert sorted(asked) == sorted([(4, 4096), (4, 4096), (1, 1000), (1, 1000), (4, 100)])
    assert told == ["compiling the programs of 3 tables for v5e:2x2"]
    assert [(one.programs, one.code, one.seconds) for one in found.tables] == [
        (2, 200, 1.0), (2, 200, 1.0), (1, 100, 0.5),
    ]  # fmt: skip
    a = found.tables[0]
    assert a.exchange == "gather"
    assert a.batch == 2 * 2 * a.table + (3 * a.table - a.table - a.slots)


def test_ids_by_rank_are_tried_too(no_compiler, write, monkeypatch):
    """Each shape is compiled once, and a model fits only if it does with both."""
    shapes = []

    def compile_it(mesh, geometry, dtype, shape, *_):
        shapes.append(shape)
        return compiled_of(geometry, 2**24 * shape.capacity)  # 16 MiB for each row of room

    no_compiler(compiled_of)
    monkeypatch.setattr(fits, "compile_lookup", compile_it)
    monkeypatch.setattr(fits, "compile_update", compile_it)
    text = SMALL.replace('"uniform"', '"zipf:1.05"').replace("batch = 64", "batch = 4096")
    text = text.replace("rows = 4096", "rows = 4096000")
    for layout in ("div", None):
        shapes.clear()
        model = load_model(write(text), {} if layout is None else {"layout": layout})
        found = compiled_plan(model, topology("v5e:2x4"))
        assert (found.by_rank, found.other.by_rank) == (layout == "div", layout != "div")
        assert len(set(shapes)) == len(shapes)
        of_a = {one.by_rank: one.tables[0] for one in (found, found.other)}
        told = plan.as_text(model, found, None).splitlines()
        title = "MiB on each device that holds the table, and seconds to compile, "
        assert told[3] == f"{title}with ids scattered"
        room = found.topology.hbm // 2**30
        if layout == "div":
            assert of_a[True].temporaries > 4 * of_a[False].temporaries
            assert (found.possible, found.other.possible) == (False, True)
            assert found.other.fits
            assert not found.fits
            at = told.index("and with ids by rank, where it differs")
            assert [line.split()[0] for line in told[at + 1 : at + 3]] == ["table", "a"]
            assert told[at + 3] == ""
            assert re.fullmatch(
                rf"with ids scattered: [\d.]+ GiB of {room}.75 GiB; "
                rf"with ids by rank: [\d.]+ GiB of {room}.75 GiB",
                told[-5],
            )
            assert told[-3].startswith("does not fit with ids by rank: ")
            assert smallest_plan(model, found).topology.name != "v5e:2x4"
        else:
            assert of_a[True].temporaries <= 1.25 * of_a[False].temporaries
            assert found.fits
            assert smallest_plan(model, found) is not None
    uniform = compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"))
    assert uniform.other is None


def test_where_no_layout_is_given_it_is_that_of_the_backend(write):
    text = SMALL.replace('"uniform"', '"uniform"').replace("hot = 4", 'hot = 4\nlayout = "div"')
    for name, given, wanted in (
        ("v5e:2x2", SMALL, ["div", "div", "div"]),
        ("v5e:2x4", SMALL, ["mod", "div", "div"]),
        ("v5e:2x4", text, ["div", "div", "div"]),
    ):
        tables = load_model(write(given)).tables
        devices = topology(name).devices
        assert [fits._geometry(table, devices).layout_name for table in tables] == wanted


def test_a_part_of_each_device_is_reserved(no_compiler, write, capsys):
    no_compiler(compiled_of)
    model = load_model(write(SMALL))
    plain, less = (compiled_plan(model, topology("v5e:2x2"), reserve=size) for size in (0, GIB))
    assert less.needed == plain.needed + GIB
    assert counted_plan(model, topology("v5e:2x2"), 16 * GIB).possible is False
    assert smallest_plan(model, compiled_plan(model, topology("v5e:2x2"), reserve=16 * GIB)) is None
    found = smallest_plan(model, compiled_plan(model, topology("v5e:2x4"), reserve=GIB))
    assert (found.topology.name, found.reserve, found.needed) == ("v5e:2x2", GIB, less.needed)
    path = str(write(SMALL))
    for size, told, code in (
        ("1073741824", "1.00 GiB", 0), ("1.5 GiB", "1.50 GiB", 0), ("512MiB", "512.0 MiB", 0),
        ("0.02TiB", "20.48 GiB", 1),
    ):  # fmt: skip
        assert plan.main(["--topology", "v5e:2x2", "--reserve", size, path]) == code
        assert f", the fullest: reserve {told}, tables " in capsys.readouterr().out
    assert plan.main(["--topology", "v5e:2x2", "--reserve", "1GiB", "--json", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["reserve"], found["needed"]) == (GIB, less.needed)
    assert found["on_fullest_device"]["reserve"] == GIB
    assert found["needed_by_ids"] == {"scattered": less.needed}
    assert plan.main(["--topology", "v5e:2x2", path]) == 0
    assert "reserve" not in capsys.readouterr().out


@pytest.mark.parametrize("size", ["", "x", "-1", "1.5", "1e9", "1GB", "1 gib", "GiB", "1 GiB 2"])
def test_sizes_that_are_none(size, capsys):
    assert plan.main(["--topology", "v5e:2x2", f"--reserve={size}"]) == 2
    assert capsys.readouterr().err == (
        "plan: error: reserve must be a count of bytes, or a number of KiB, MiB, GiB or TiB such "
        f"as 512MiB, got {size!r}\n"
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_the_verdict_is_told_before_the_search(monkeypatch, capsys, as_json):
    before = []

    def search(model, asked, seed, tell):
        before.append(capsys.readouterr())

    monkeypatch.setattr(plan, "smallest_plan", search)
    assert plan.main(["--topology", "v5e:2x2"] + ["--json"] * as_json) == 1
    ((out, err),) = before
    verdict = "does not fit: at least 49.29 GiB of 15.75 GiB, so nothing was compiled"
    assert err == (f"plan: {verdict}\n" if as_json else "")
    assert (verdict in out.splitlines()) is not as_json
    rest = capsys.readouterr().out
    assert (
        (json.loads(rest)["fits"] is False)
        if as_json
        else rest == ("smallest listed topology that fits: none of v5e\n")
    )


def test_the_verdict_stands_where_the_search_needs_a_compiler_that_is_not_there(
    monkeypatch, capsys
):
    monkeypatch.setattr(installation, "_importable", lambda module: module != "libtpu")
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    reason = (
        "platform 'tpu' cannot be used here: libtpu, which jax needs for TPUs, is not installed; "
        "pip install 'jax[tpu]<0.13,>=0.10' 'packaging>=24'"
    )
    assert plan.main(["--topology", "v5e:2x2"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"smallest listed topology that fits: not known: {reason}"
    assert plan.main(["--topology", "v5e:2x2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["smallest_topology_unknown"] == reason


@pytest.mark.libtpu
def test_nothing_but_the_plan_is_on_the_error_stream(write):
    """libtpu finds no chip and no server that tells of one, and says so by itself."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    done = subprocess.run(
        [sys.executable, "-m", "shardcore_pjrt.planning.plan", "--topology", "v5e:2x2",
         str(write(SMALL))],
        capture_output=True, text=True, env=env,
    )  # fmt: skip
    assert done.stderr == "plan: compiling the programs of 3 tables for v5e:2x2\n"
    assert "fits: " in done.stdout


def test_the_smallest_that_fits_is_compiled(no_compiler):
    asked = no_compiler(lambda geometry: compiled_of(geometry, GIB))
    model = load_model(example_model(), {"batch": 64})
    far = compiled_plan(model, topology("v6e:2x2"))
    assert not far.compiled
    smallest = smallest_plan(model, far)
    assert smallest.topology.name == "v6e:4x8"  # each table's lists are said to be four times it
    assert smallest.fits
    sizes = {size for size, _ in asked}
    assert min(sizes) == 8
    assert smallest.topology.devices == max(sizes)


def test_where_it_fits_nowhere(no_compiler, write):
    no_compiler(lambda geometry: Refused(0.5, 0, 0, "RESOURCE_EXHAUSTED: too large"))
    model = load_model(write(SMALL))
    asked = compiled_plan(model, topology("v5e:4x4"))
    assert asked.compiled
    assert not asked.possible
    assert asked.largest.refused == "RESOURCE_EXHAUSTED: too large"
    assert smallest_plan(model, asked) is None


def test_what_was_asked_for_is_not_compiled_again(no_compiler, write):
    asked = no_compiler(compiled_of)
    model = load_model(write(SMALL))
    found = compiled_plan(model, topology("v5e:2x2"))
    before = len(asked)
    assert smallest_plan(model, found) is found
    assert len(asked) == before
