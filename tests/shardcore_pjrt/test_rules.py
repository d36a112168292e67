"""What ships is what is tested: the programs of a TPU and a GPU, run on CPU devices.

Which lanes, exchanges and layouts are chosen depends on the platform; nothing else does. Random
batches by the rules of each are in `test_battery`.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from shardcore_pjrt.backend import PjrtBackend
from shardcore_pjrt.programs import lookup_program, update_program
from shardcore_pjrt.routing.strategy import ONE_HOT_ROWS

import shardcore as sc


@pytest.mark.parametrize(
    ("rules", "devices", "rows", "lookup", "update", "packed", "layout"),
    [
        ("tpu", 8, 999, "all_to_all", "all_to_all", 8, "mod"),
        ("tpu", 4, 999, "gather", "gather", 8, "div"),
        ("tpu", 1, ONE_HOT_ROWS, "one_hot", "local", 8, "div"),
        ("cuda", 8, 999, "all_to_all", "all_to_all", 1, "mod"),
        ("cuda", 4, 999, "gather", "gather", 1, "div"),
        ("cuda", 1, ONE_HOT_ROWS, "local", "local", 1, "div"),
        ("cpu", 4, 999, "all_to_all", "gather", 1, "mod"),
    ],
)
def test_rules_choose_the_programs(
    monkeypatch, rules, devices, rows, lookup, update, packed, layout
):
    used = {}
    for module, function in (
        (lookup_program, "lookup_program"),
        (update_program, "update_program"),
    ):
        make = getattr(module, function)

        def seen(mesh, geometry, shape, *others, make=make, function=function):
            used[function] = (shape.exchange, geometry.rows_per_line, geometry.layout.strategy)
            return make(mesh, geometry, shape, *others)

        monkeypatch.setattr(f"shardcore_pjrt.backend.{function}", seen)
    backend = PjrtBackend("cpu", devices, rules=rules)
    table = sc.TableConfig(rows, 16, name="t")
    with sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(0.1), backend) as engine:
        engine.enqueue(np.zeros((8, 2), np.int64))
        engine.apply_gradients(np.ones((8, 16), np.float32) + 0 * np.asarray(engine.dequeue()))
    assert used == {
        "lookup_program": (lookup, packed, layout),
        "update_program": (update, packed, layout),
    }


def test_rules_are_those_of_a_platform(platform):
    message = "rules must be None or a platform, got 3"
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(message)}$") as info:
        PjrtBackend(platform, 1, rules=3)
    assert isinstance(info.value, TypeError)
    backend = PjrtBackend(platform, 1, lanes=1, rules="tpu")
    assert backend._lanes == 1  # what is said goes before a rule
    backend.close()
