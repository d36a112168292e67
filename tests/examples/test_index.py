"""The approximate index of the page on word2vec, built over files that the examples have saved."""

from __future__ import annotations

import contextlib
import io
import re

import numpy as np
import pytest

pytest.importorskip("faiss", reason="faiss is not installed (pip install faiss-cpu)")


@pytest.fixture
def index_of(page, tmp_path, monkeypatch):
    """Return a function: (file of vectors, name asked for) -> what the page's program has."""

    def build(file, name):
        (program,) = re.findall(r"^    import faiss.*\n(?:    .*\n|\n)*", page("word2vec.md"), re.M)
        code = "\n".join(line.removeprefix("    ") for line in program.splitlines())
        assert "words." in code
        assert '"encode"' in code
        monkeypatch.chdir(tmp_path)
        found: dict[str, object] = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code.replace("words.", f"{file}.").replace('"encode"', repr(name)), found)
        return found, printed.getvalue()

    return build


def shared(index, vectors, exact, count):
    """Return which part of the exact neighbours an index finds; each row finds itself first."""
    _, rows = index.search(vectors, count + 1)
    hits = [len(set(near) & set(true)) for near, true in zip(rows, exact, strict=True)]
    return sum(hits) / exact.size


def test_words_are_found_by_the_index(index_of, imported, run, tmp_path):
    run(tmp_path, "word2vec.py", "--words", 120_000, "--epochs", 1, "--save", "words.npy")
    vectors = np.load(tmp_path / "words.npy")
    names = (tmp_path / "words.txt").read_text(encoding="utf-8").split()
    found, printed = index_of("words", "self")
    exact, _ = imported("word2vec").nearest(vectors, np.arange(len(vectors)), 3)
    assert found["index"].ntotal == len(vectors) > 1000
    assert shared(found["index"], found["vectors"], exact, 3) > 0.95
    nearest = [names[row] for row in exact[names.index("self")]]
    assert printed == f"{['self', *nearest]}\n"


def test_nodes_are_found_by_the_index(index_of, imported, run, tmp_path):
    run(tmp_path, "node2vec.py", "edges.txt", "--generate", 1000)
    run(tmp_path, "node2vec.py", "edges.txt", "--epochs", 2, "--save", "nodes.npy")
    vectors = np.load(tmp_path / "nodes.npy")
    found, printed = index_of("nodes", "999")
    exact, _ = imported("word2vec").nearest(vectors, np.arange(1000), 3)
    assert shared(found["index"], found["vectors"], exact, 3) > 0.95
    assert printed.startswith("['999', ")
    near = re.findall(r"'(\d+)'", printed)[1:]
    assert {int(node) // 50 for node in near} == {19}  # its community
