"""The description of a model: what it says, and what is wrong with it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import shardcore as sc
from shardcore.errors import (
    ShardcoreOSError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UnknownPluginError,
)
from shardcore.planning.id_distribution import IdDistribution
from shardcore.planning.model_file import example_model, load_model

TABLE = '[[table]]\nname = "a"\nrows = 5\ndim = 2\n'


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("batch = ", ShardcoreValueError, "is no TOML: "),
        ("batch = 3", ShardcoreValueError, "must have at least one [[table]]"),
        (TABLE, ShardcoreValueError, ": the key 'batch' is missing"),
        ("batch = 0\n" + TABLE, ShardcoreValueError, ": batch must be an integer >= 1, got 0"),
        ("batch = 2.0\n" + TABLE, ShardcoreTypeError, ": batch must be an integer >= 1, got 2.0"),
        ("batch = 2\nsize = 1\n" + TABLE, ShardcoreValueError,
         ": unknown key 'size'; known are batch, optimizer, ids, strategy, table"),
        ('batch = 2\noptimizer = "Adagrat"\n' + TABLE, UnknownPluginError,
         ": unknown optimizer 'Adagrat'"),
        ('batch = 2\nids = "zip"\n' + TABLE, ShardcoreValueError,
         ": ids must be 'uniform', 'zipf:<exponent>', 'reuse:2021' or 'reuse:2022', got 'zip'"),
        ("batch = 2\nids = 3\n" + TABLE, ShardcoreTypeError,
         ": ids must be 'uniform', 'zipf:<exponent>', 'reuse:2021' or 'reuse:2022', got 3"),
        ('batch = 2\nids = "zipf:x"\n' + TABLE, ShardcoreValueError,
         ": ids must be 'uniform', 'zipf:<exponent>', 'reuse:2021' or 'reuse:2022', got 'zipf:x'"),
        ('batch = 2\nids = "zipf:-1"\n' + TABLE, ShardcoreValueError,
         ": the exponent of zipf ids must be a finite number >= 0, got -1.0"),
        ("batch = 2\nstrategy = 3\n" + TABLE, ShardcoreTypeError,
         ": strategy must be a str, got 3"),
        ("batch = 2\n" + TABLE + "size = 2", ShardcoreValueError,
         ": table[0]: unknown key 'size'; known are name, rows, dim, hot, dtype, layout, "
         "placement, exchange, optimizer"),
        ("batch = 2\n" + TABLE + TABLE.replace("rows = 5", ""), ShardcoreValueError,
         ": table[1]: the key 'rows' is missing"),
        ("batch = 2\ntable = [3]", ShardcoreTypeError,
         ": table[0]: must be a table of TOML, got 3"),
        ("batch = 2\n" + TABLE + TABLE, ShardcoreValueError, ": two tables are named 'a'"),
        ("batch = 2\n" + TABLE.replace("5", "0"), ShardcoreValueError,
         ": table[0]: rows must be an integer >= 1, got 0"),
        ("batch = 2\n" + TABLE + "hot = true", ShardcoreTypeError,
         ": table[0]: hot must be an integer >= 1, got True"),
        ("batch = 2\n" + TABLE + 'placement = "rows"', ShardcoreValueError,
         ": table[0]: placement must be"),
    ],
)  # fmt: skip
def test_messages_of_models(write, text, error, message):
    path = write(text)
    with pytest.raises(error, match=f"^{re.escape(f'model {path}')}.*{re.escape(message)}") as info:
        load_model(path, {"layout": "mod"})
    assert info.type is error


def test_a_model_that_is_not_there(tmp_path):
    path = tmp_path / "none.toml"
    with pytest.raises(ShardcoreOSError, match=re.escape(f"model {path} cannot be read: ")):
        load_model(path)


def test_what_a_model_says(write):
    text = 'batch = 3\nids = "uniform"\n' + TABLE + 'dtype = "float16"\nplacement = "column"\n'
    model = load_model(write(text + TABLE.replace('"a"', '"b"')), {"batch": 4, "dim": 8})
    assert (model.batch, model.ids) == (4, IdDistribution("uniform"))
    first, second = (table.spec for table in model.tables)
    assert (first.dtype, first.placement, first.dim) == (np.float16, "column", 8)
    assert (second.dtype, second.placement, second.exchange) == (np.float32, "row", "exact")
    assert second.optimizer == sc.optimizers.Adagrad()
    assert [table.hot for table in model.tables] == [1, 1]


def test_tables_with_optimizers_of_their_own(write):
    text = "batch = 3\n" + TABLE + TABLE.replace('"a"', '"b"') + 'optimizer = "SGD"\n'
    path = write(text + TABLE.replace('"a"', '"c"') + 'optimizer = ""\n')
    made = [table.spec.optimizer for table in load_model(path).tables]
    assert made == [sc.optimizers.Adagrad(), sc.optimizers.SGD(), None]
    made = [table.spec.optimizer for table in load_model(path, {"optimizer": "Adam"}).tables]
    assert made == [sc.optimizers.Adam()] * 3


def test_the_example():
    model = load_model(example_model())
    assert (len(model.tables), model.batch) == (26, 65536)
    assert sum(table.hot for table in model.tables) == 214
    assert sum(table.spec.num_rows * table.spec.dim for table in model.tables) == 26_135_627_264


def test_a_model_names_the_strategy_of_its_backend(write):
    assert load_model(write("batch = 2\n" + TABLE)).strategy is None
    path = write('batch = 2\nstrategy = "s"\n' + TABLE)
    assert load_model(path).strategy == "s"
    assert load_model(path, {"strategy": "t"}).strategy == "t"
