"""What a backend declares: refused in one wording, shown by ``shardcore info``."""

import dataclasses
import re

import numpy as np
import pytest

import shardcore as sc
from shardcore import info
from shardcore.backend import Capabilities, QuantizationConfig, TableSpec
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.plugins import BackendSpec

SMALL = Capabilities(
    ("float32", "float16"),
    ("row", "replicated"),
    ("exact",),
    ("div",),
    quantization=False,
    slot_dtypes=("float32", "float16"),
    max_norm=False,
)


def spec(dtype="float32", **fields):
    return TableSpec("t", 4, 2, np.dtype(dtype), sc.initializers.Zeros(), 0, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"placement": "table"}, "placement 'row' or 'replicated' {}, got 'table'"),
        ({"exchange": "partial"}, "exchange 'exact' {}, got 'partial'"),
        ({"layout": "mod"}, "layout 'div' {}, got 'mod'"),
        ({"max_norm": 0.5}, "max_norm None {}, got 0.5"),
        ({"layout": (3, 1)}, "layout 'div' {}, got (3, 1)"),
        (
            {"quantization": QuantizationConfig(3, -1.0, 1.0)},
            "quantization None {}, got QuantizationConfig(num_buckets=3, lower=-1.0, upper=1.0)",
        ),
    ],
)
def test_what_a_backend_has_not_is_refused_in_one_wording(fields, words):
    message = "table 't' must have " + words.format("on backend 'acme'")
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        SMALL.check_table(spec(**fields), "acme")
    SMALL.check_table(spec(), "acme")
    Capabilities().check_table(spec(**fields), "acme")


def test_row_counts_are_for_each_host_of_several():
    backend = sc.get_backend("sim", hosts=3)
    table = sc.TableConfig(8, 2, name="t", layout=[3, 0, 4, 1])
    message = (
        "table 't' must have one row count in layout for each of 3 hosts on backend 'sim', "
        "got 4: (3, 0, 4, 1)"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        sc.ShardedEmbedding(sc.FeatureConfig(table), backend=backend)
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        backend.create_table(dataclasses.replace(spec(), layout=(3, 0, 4, 1), num_rows=8))
    assert backend.specs == {}
    for one in (sc.get_backend("cpu"), sc.get_backend("sim", hosts=1)):
        e = sc.ShardedEmbedding(sc.FeatureConfig(table), backend=one)
        e.build()
        assert one.layout("t") == sc.Layout.div(8, 1)


def test_dtypes_are_checked_of_tables_and_slots():
    rule = "must have dtype float32 or float16 on backend 'acme', got float64"
    with pytest.raises(ShardcoreTypeError, match=rf"^table 't' {rule}$"):
        SMALL.check_table(spec("float64"), "acme")
    optimizer = sc.optimizers.Adagrad(slot_dtype="float64")
    with pytest.raises(ShardcoreTypeError, match=rf"^slot 'accumulators' of table 't' {rule}$"):
        SMALL.check_table(spec(optimizer=optimizer), "acme")


def test_an_engine_asks_before_anything_is_created():
    class Small(type(sc.get_backend("cpu"))):
        capabilities = SMALL

        def make_table(self, spec):
            raise AssertionError("nothing may be created")

    backend = Small()
    table = sc.TableConfig(4, 2, name="t", placement="column")
    with pytest.raises(ShardcoreValueError, match=r"^table 't' must have placement 'row' or"):
        sc.ShardedEmbedding(sc.FeatureConfig(table), backend=backend)
    with pytest.raises(ShardcoreValueError, match=r"^table 't' must have placement 'row' or"):
        backend.create_table(spec(placement="column"))
    assert backend.specs == {}


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_what_a_plugin_shows_is_what_its_backend_has(name):
    assert sc.backends()[name].capabilities == sc.get_backend(name).capabilities


def test_info_shows_them():
    assert (
        "    float32, float64, float16, bfloat16; placement row, table, column, replicated; "
        "exchange exact, partial; layout div, mod, ranges; quantization; max_norm"
    ) in info.describe()


def test_they_must_be_a_record():
    message = "capabilities of backend 'acme' must be Capabilities or None, got ['float32']"
    with pytest.raises(ShardcoreTypeError, match=re.escape(message)):
        BackendSpec("acme", factory=dict, capabilities=["float32"])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("cpu", {}, "<backend 'cpu': 1 host; tables: none>"),
        ("sim", {"hosts": 3}, "<backend 'sim': 3 hosts; tables: none>"),
    ],
)
def test_a_backend_shows_its_hosts_and_tables(name, options, text):
    backend = sc.get_backend(name, **options)
    assert repr(backend) == text
    backend.create_table(spec())
    assert repr(backend) == text.replace("none", "t")
