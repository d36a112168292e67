"""Functions and their modules from small directories of Python files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from shardcore_demo.corpus import functions_of, read_corpus, standard_library
from shardcore_demo.features import hashed_bags, take_bags, tokens_of

from shardcore.errors import ShardcoreOSError, ShardcoreValueError


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def define(*names: str) -> str:
    return "".join(f"def {name}(x):\n    return {name}_of(x)\n\n" for name in names)


def test_modules_are_top_level_entries_and_tests_are_left_out(tmp_path: Path):
    source = write(
        tmp_path,
        {
            "zebra.py": define("z1", "z2"),
            "ant/__init__.py": define("a1"),
            "ant/deep/leg.py": define("a2"),
            "ant/tests/inside.py": define("no"),
            "ant/test_leg.py": define("no"),
            "small.py": define("s1"),
            "test/big.py": define("no", "no2", "no3"),
            "idlelib/editor.py": define("no", "no2", "no3"),
            "site-packages/other.py": define("no", "no2", "no3"),
            ".hidden/venv.py": define("no", "no2", "no3"),
            "data.txt": define("no", "no2"),
            "testimony.py": define("t1", "t2", "t3"),
        },
    )
    corpus = read_corpus(source, min_functions=2)
    assert corpus.modules == ("ant", "testimony", "zebra")
    assert corpus.labels.tolist() == [0, 0, 1, 1, 1, 2, 2]
    names = [text.split("(")[0] for text in corpus.texts]
    assert names == [f"def {name}" for name in ("a1", "a2", "t1", "t2", "t3", "z1", "z2")]
    assert corpus.unreadable == 0
    assert corpus.largest_share == pytest.approx(3 / 7)
    assert corpus.largest_module == "testimony"


def test_a_package_and_a_file_of_one_name_are_one_module(tmp_path: Path):
    source = write(
        tmp_path, {"ant.py": define("a1"), "ant/leg.py": define("a2"), "bee.py": define("b1", "b2")}
    )
    corpus = read_corpus(source, min_functions=2)
    assert corpus.modules == ("ant", "bee")
    assert corpus.labels.tolist() == [0, 0, 1, 1]


def test_reading_stops_after_the_module_that_reaches_the_limit(tmp_path: Path):
    files = {f"{name}.py": define("f1", "f2") for name in "abcde"} | {"b.py": define("alone")}
    corpus = read_corpus(write(tmp_path, files), min_functions=2, max_functions=3)
    assert corpus.modules == ("a", "c")


def test_files_that_are_no_python_are_counted(tmp_path: Path):
    source = write(
        tmp_path,
        {"a.py": define("f"), "b.py": define("f"), "c.py": "print 'old'\n", "d.py": "\0"},
    )
    (source / "e.py").write_bytes(b"# coding: no-such-codec\n")
    (source / "f.py").write_bytes(b"x = '\xff'\n")
    assert read_corpus(source, min_functions=1).unreadable == 4


def test_every_line_belongs_to_the_innermost_function():
    code = """
class Table:
    @property
    def rows(self):
        def inner():
            return 1
        return inner

    async def fetch(self): return [self]

def last(): pass
"""
    assert functions_of(code.encode()) == [
        "    @property\n    def rows(self):\n        return inner",
        "        def inner():\n            return 1",
        "    async def fetch(self): return [self]",
        "def last(): pass",
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("prefix", ["", "\ufeff"])
def test_lines_are_counted_as_python_counts_them(newline: str, prefix: str):
    text = f'{prefix}x = "\f\u2028"\ndef f():\n    return "\u2028é"\n'
    code = text.replace("\n", newline).encode()
    assert functions_of(code) == ['def f():\n    return "\u2028é"']


def test_other_encodings_are_read():
    assert functions_of(b"# coding: latin-1\ndef f():\n    return '\xe9'\n") == [
        "def f():\n    return 'é'"
    ]


def test_escapes_in_other_peoples_strings_raise_no_warning():
    assert functions_of(b"def f():\n    return '\\d'\n") == ["def f():\n    return '\\d'"]


def test_a_directory_with_too_little_is_refused(tmp_path: Path):
    write(tmp_path, {"a.py": define("f", "g"), "b.py": define("f")})
    message = f"source must hold two modules of at least 2 functions, got 1 in {tmp_path}"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        read_corpus(tmp_path, min_functions=2)


def test_a_missing_directory_is_named(tmp_path: Path):
    missing = tmp_path / "missing"
    with pytest.raises(ShardcoreOSError, match=re.escape(f"source {missing} cannot be listed: ")):
        read_corpus(missing, min_functions=2)


def test_the_standard_library_is_large():
    corpus = read_corpus(standard_library(), min_functions=30, max_functions=1500)
    assert len(corpus.texts) >= 1500
    assert "ast" in corpus.modules
    assert np.bincount(corpus.labels).min() >= 30


def test_tokens_are_words_pairs_and_parts():
    assert tokens_of("") == []
    assert tokens_of("HTTPServer2 = _x") == [
        *("HTTPServer2", "_x"),
        *("HTTPServer2 =", "= _x"),
        *(":http", ":server", ":2"),
    ]


def test_bags_hold_the_hashed_tokens_of_their_texts():
    texts = ["a b", "", "read_file"]
    values, row_splits = hashed_bags(texts, buckets=1000)
    assert row_splits.tolist() == [0, 3, 3, 6]
    assert values.dtype == row_splits.dtype == np.int64
    for number, text in enumerate(texts):
        alone, _ = hashed_bags([text], buckets=1000)
        np.testing.assert_array_equal(values[row_splits[number] : row_splits[number + 1]], alone)
    taken = take_bags((values, row_splits), np.array([2, 1, 2]))
    np.testing.assert_array_equal(taken[0], np.concatenate([values[3:], values[3:]]))
    np.testing.assert_array_equal(taken[1], [0, 3, 3, 6])
    none = take_bags((values, row_splits), np.array([], np.int64))
    assert none[0].size == 0
    assert none[1].tolist() == [0]
