"""`shardcore plan` of tables in SparseCores."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from shardcore_pjrt.planning import fits, plan, sparsecore_needs
from shardcore_pjrt.planning.ahead_of_time import Compiled, Refused, tpu_mesh
from shardcore_pjrt.planning.fits import compiled_plan, counted_plan, smallest_plan
from shardcore_pjrt.planning.sparsecore_needs import sparsecore_stacks
from shardcore_pjrt.planning.topologies import LISTED, topology
from shardcore_pjrt.sparsecore.primitives import CORES

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.planning import example_model, load_model

MODEL = """
batch = 64
ids = "uniform"
strategy = "sparsecore"
[[table]]
name = "a"
rows = 4096
dim = 12
hot = 4
[[table]]
name = "b"
rows = 1000
dim = 16
layout = "div"
[[table]]
name = "apart"
rows = 90
dim = 16
optimizer = "SGD"
"""


@pytest.fixture
def no_compiler(monkeypatch):
    """Answer compilations with what the test wants; count them."""
    asked = []

    def compiles(answer):
        def compile_it(make, arguments):
            asked.append(make)
            return answer

        monkeypatch.setattr(fits, "tpu_mesh", lambda topology, devices: None)
        monkeypatch.setattr(sparsecore_needs, "compiled", compile_it)
        for kind in ("lookup", "update", "features", "gradients"):
            name = f"shardcore_pjrt.sparsecore.programs.{kind}_arguments"
            monkeypatch.setattr(name, lambda *_: None)
        return asked

    return compiles


def test_stacks_of_cores_are_those_of_the_backend(write, emulated):
    from shardcore_pjrt.sparsecore.backend import SparseCoreBackend

    model = load_model(write(MODEL))
    backend = SparseCoreBackend("cpu", 4, 2)
    specs = [
        one.spec if one.layout_given else replace(one.spec, layout=backend.default_layout(one.spec))
        for one in model.tables
    ]
    backend.create_tables(specs)
    held = {id(stack): stack for stack in backend._stacks.values()}.values()
    planned = [tables for tables, _ in sparsecore_stacks(model, topology("v6e:2x2"))]
    assert [(tables.geometry, tables.rule) for tables in planned] == [
        (stack.geometry, stack.rule) for stack in held
    ]
    assert [[spec.name for spec in tables.specs] for tables in planned] == [["a", "b"], ["apart"]]
    for (_, needs), stack in zip(sparsecore_stacks(model, topology("v6e:2x2")), held, strict=True):
        nbytes = [array.nbytes // 4 for array in stack.arrays.values()]
        assert (needs.table, needs.slots) == (nbytes[0], sum(nbytes[1:]))
    backend.close()


def test_what_is_known_of_cores_without_a_compiler(write):
    counted = counted_plan(load_model(write(MODEL)), topology("v6e:2x2"))
    stack, apart = counted.tables
    assert (stack.name, stack.members, stack.home) == ("a", ("a", "b"), None)
    # Of each of 2 cores, 4096 / 4 / 2 and 250 / 2 rows, in multiples of 8.
    assert stack.table == stack.slots == 2 * (512 + 128) * 16 * 4
    assert stack.batch == 3 * 16 * (12 + 16) * 4
    assert (apart.table, apart.slots, apart.members) == (2 * 16 * 16 * 4, 0, ())
    assert counted.possible
    large = load_model(write(MODEL.replace("4096", "4096000000")))
    assert not counted_plan(large, topology("v6e:2x2")).possible


def test_four_programs_for_each_stack(no_compiler, write, capsys):
    asked = no_compiler(Compiled(0.5, 200_000, 3000, 0, 700, 10, 0, {}, ()))
    path = write(MODEL)
    found = compiled_plan(load_model(path), topology("v6e:2x2"))
    assert len(asked) == 8
    stack, _ = found.tables
    assert (stack.exchange, stack.programs, stack.code, stack.temporaries) == ("cores", 4, 40, 700)
    # Lookup, features, gradients, update.
    lists = 2 * (200_000 - stack.table + 3000) + 2 * 3000 + 200_000
    assert stack.batch == lists + 200_000 - stack.table - stack.slots
    assert smallest_plan(load_model(path), found) is found
    assert plan.main(["--topology", "v6e:2x2", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1] == "3 tables in 2 stacks, 5186 rows, batch 64, ids uniform"
    assert told[5].startswith("a and 1 more  row        all     cores ")


def test_the_strategy_is_of_the_model_or_of_the_command(no_compiler, write, capsys):
    no_compiler(Compiled(0.5, 200_000, 3000, 0, 700, 10, 0, {}, ()))
    path = str(write(MODEL.replace('strategy = "sparsecore"', "")))
    command = ["--topology", "tpu7x:2x2x1", "--json", "--strategy", "sparsecore", path]
    assert plan.main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["strategy"] == "sparsecore"
    assert {one["exchange"] for one in told["tables"]} == {"cores"}
    assert load_model(path).strategy is None
    told = "strategy must be None or 'sparsecore', got 'cores'"
    other = load_model(write(MODEL.replace('"sparsecore"', '"cores"')))
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        counted_plan(other, topology("v6e:2x2"))


def test_a_batch_that_cores_cannot_take(no_compiler, write, capsys):
    """Every bag of a core names the one row of a table."""
    asked = no_compiler(Compiled(0.5, 0, 0, 0, 0, 0, 0, {}, ()))
    text = MODEL.replace("batch = 64", "batch = 4194304").replace("rows = 90", "rows = 1")
    path = write(text)
    found = compiled_plan(load_model(path), topology("v6e:2x2"))
    assert not found.fits
    message = (
        "the ids of a batch from bags of one SparseCore to rows of another must be at most 131072 "
        "ids in each of 64 minibatches, got 524288: use smaller batches or more devices"
    )
    assert found.largest.refused == message
    assert len(asked) == 4  # of the other stack
    told = plan.as_text(load_model(path), found, None).splitlines()
    assert told[-3] == "does not fit: SparseCores cannot take a batch"
    assert told[-2] == f"to blame is table 'apart': {message}"


def test_a_program_that_the_compiler_refuses(no_compiler, write):
    no_compiler(Refused(0.5, 0, 0, "RESOURCE_EXHAUSTED: too large"))
    model = load_model(write(MODEL))
    found = compiled_plan(model, topology("v6e:2x2"))
    assert plan.as_text(model, found, None).splitlines()[-3:-1] == [
        "does not fit: the compiler refused a program",
        "to blame is table 'a' and 1 more that lie with it: RESOURCE_EXHAUSTED: too large",
    ]


@pytest.mark.parametrize(
    ("change", "where", "error", "message"),
    [
        ("", "v5e:2x2", ShardcoreValueError,
         "strategy 'sparsecore' must be for devices with SparseCores, which those of v5p, v6e and "
         "tpu7x have, got topology 'v5e:2x2'"),
        ('dtype = "float16"', "v6e:2x2", ShardcoreTypeError,
         "table 'a' must have dtype float32 on backend 'pjrt', got float16"),
        ('placement = "table"', "v6e:2x2", ShardcoreValueError,
         "table 'a' must have placement 'row' on backend 'pjrt', got 'table'"),
        ('optimizer = "LAMB"', "v6e:2x2", ShardcoreValueError,
         "table 'a' must have an optimizer that SparseCores have, which are "),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_in_cores(write, change, where, error, message):
    model = load_model(write(MODEL.replace("hot = 4", f"hot = 4\n{change}")))
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        counted_plan(model, topology(where))


PAGE = Path(__file__).parents[3] / "docs" / "devices.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="the documents are not beside these tests")
def test_the_page_shows_a_plan_as_it_is_told():
    """What is counted is compared; of what only the compiler knows, the shape of the line."""
    command = "    $ shardcore plan --topology v6e:2x4 --strategy sparsecore\n"
    shown = PAGE.read_text(encoding="utf-8").split(command)[1].split("    …")[0]
    model = load_model(example_model(), {"strategy": "sparsecore"})
    counted = counted_plan(model, topology("v6e:2x4"))
    tables = tuple(replace(one, exchange="cores") for one in counted.tables)
    one = replace(counted, tables=tables, compiled=True)
    found = replace(one, other=replace(one, by_rank=True))
    told = plan.as_text(model, found, found).splitlines()
    lines = [line.rstrip() for line in textwrap.dedent(shown).splitlines()]
    assert lines[:4] == told[:4]
    assert lines[4].split() == told[4].split()
    (row,) = (line.split("  ") for line in lines if line.startswith("cat_0"))
    (own,) = (line.split("  ") for line in told if line.startswith("cat_0"))
    row, own = ([cell.strip() for cell in one if cell] for one in (row, own))
    assert row[:6] == own[:6]  # as far as it is known without a compiler


@pytest.mark.libtpu
def test_listed_devices_have_as_many_cores():
    for one in LISTED.values():
        if one.devices <= 8:
            kind = tpu_mesh(one).devices.flat[0].device_kind
            assert one.sparsecores == CORES.get(kind, 0), one.name


@pytest.mark.libtpu
def test_a_model_that_fits_in_cores(write, capsys):
    pytest.importorskip("jax_tpu_embedding", reason="jax_tpu_embedding is not installed")
    path = write(MODEL)
    assert plan.main(["--topology", "v6e:2x2", "--json", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fits"], told["smallest_topology"]) == (True, "v6e:2x2")
    assert [one["programs"] for one in told["tables"]] == [4, 4]
    counted = counted_plan(load_model(path), topology("v6e:2x2"))
    for one, before in zip(told["tables"], counted.tables, strict=True):
        assert one["batch"] > before.batch
        assert one["code"] > 0
