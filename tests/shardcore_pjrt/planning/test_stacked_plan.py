"""Plans of tables that lie together, in stacks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from planned_models import compiled_of
from shardcore_pjrt.planning import fits, plan
from shardcore_pjrt.planning.fits import compiled_plan, counted_plan
from shardcore_pjrt.planning.topologies import topology

from shardcore.planning.model_file import load_model

MANY = """
batch = 64
ids = "uniform"
[[table]]
name = "a"
rows = 4096
dim = 16
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
[[table]]
name = "c"
rows = 77
dim = 16
hot = 2
[[table]]
name = "whole"
rows = 50
dim = 16
placement = "table"
"""


@pytest.mark.parametrize("where", ["v5e:2x2", "v5e:2x4"])
def test_stacks_are_those_of_the_backend(write, where):
    """The backend of CPU devices that follow the rules of a TPU, with the same tables."""
    pytest.importorskip("jax", reason="jax is not installed")
    from shardcore_pjrt.backend import PjrtBackend

    model = load_model(write(MANY))
    backend = PjrtBackend("cpu", topology(where).devices, rules="tpu")
    specs = [
        one.spec if one.layout_given else replace(one.spec, layout=backend.default_layout(one.spec))
        for one in model.tables
    ]
    backend.create_tables(specs)
    held = {}
    for name, (member, stack) in backend._tables.items():
        held.setdefault(id(stack), (stack.geometry, []))[1].append((name, member.start.tolist()))
    planned = [
        (stack.geometry, [(one.spec.name, one.start.tolist()) for one in stack.members])
        for stack, _ in fits._stacks(model, topology(where))
    ]
    assert planned == list(held.values())
    assert [[name for name, _ in own] for _, own in planned] == [
        ["a", "b", "c"],
        ["apart"],
        ["whole"],
    ]
    backend.close()


def test_a_stack_has_one_lookup_and_one_update(no_compiler, write, capsys):
    asked = no_compiler(compiled_of)
    path = write(MANY)
    found = compiled_plan(load_model(path), topology("v5e:2x2"))
    stack, apart, whole = found.tables
    assert (stack.members, apart.members, whole.members) == (("a", "b", "c"), (), ())
    assert asked == [(4, 4 * (1024 + 250 + 20))] * 2 + [(4, 90)] * 2 + [(1, 50)] * 2
    assert stack.programs == 2
    assert stack.table == stack.slots == 168 * 128 * 4  # 1294 rows, 8 to a line, 8 lines to a tile
    assert (
        counted_plan(load_model(path), topology("v5e:2x2")).tables[0].batch == 3 * 16 * 16 * 4 * 3
    )
    told = plan.as_text(load_model(path), found, None).splitlines()
    assert told[1] == "5 tables in 3 stacks, 5313 rows, batch 64, ids uniform"
    assert told[5].startswith("a and 2 more  row        all     gather ")
    assert told[6].startswith("apart ")
    assert told[-2].startswith("most is taken by table 'a' and 2 more that lie with it: ")
    assert plan.main(["--topology", "v5e:2x2", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert [one["members"] for one in json.loads(out)["tables"]] == [["a", "b", "c"], [], []]
    assert "plan: compiling the programs of 5 tables in 3 stacks for v5e:2x2\n" in err


def test_the_batch_of_a_stack_is_that_of_all_its_tables(no_compiler, write, monkeypatch):
    """Lists have room for the ids of all; each row of the stack is one of a table's rows."""
    shapes = []

    def compile_it(mesh, geometry, dtype, shape, *_):
        shapes.append(shape)
        return compiled_of(geometry)

    no_compiler(compiled_of)
    monkeypatch.setattr(fits, "compile_lookup", compile_it)
    text = 'batch = 4096\nids = "uniform"\n'
    for name, hot in (("a", 3), ("b", 5)):
        text += f'[[table]]\nname = "{name}"\nrows = 2000\ndim = 16\nhot = {hot}\n'
    compiled_plan(load_model(write(text)), topology("v5e:2x2"))
    (shape,) = shapes
    assert shape.bags == (1024, 1024)
    assert 1024 * (3 + 5) <= shape.occurrences <= 1.25 * 1024 * (3 + 5)
    assert 1.9 * 2000 < shape.capacity <= 1.25 * 2 * 2000  # nearly every row of both is named
