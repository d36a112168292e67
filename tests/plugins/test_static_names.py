"""What is known of optimizers without running anything: names and signatures, from a stub."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardcore.plugins import registry

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "name_optimizers.py"
if not SCRIPT.exists():
    pytest.skip("the sources are not beside these tests", allow_module_level=True)

spec = importlib.util.spec_from_file_location("name_optimizers", SCRIPT)
names = importlib.util.module_from_spec(spec)
spec.loader.exec_module(names)


def test_the_stub_names_the_first_party_optimizers():
    found = names.first_party()
    for name in found:
        assert registry.get_optimizer(name) is found[name]
    listed = [name for name in registry.optimizers() if not is_of_another(name)]
    assert sorted(found) == sorted(listed)
    told = "run: python docs/name_optimizers.py"
    assert names.STUB.read_text(encoding="utf-8") == names.stub(), told


def is_of_another(name: str) -> bool:
    package = registry.get_optimizer(name).__module__.partition(".")[0]
    return package != "shardcore_optimizers"


CODE = """\
import shardcore as sc
from shardcore.optimizers import SGD, UnknownOptimizerError

sc.optimizers.Adam(learing_rate=0.1)
SGD("0.1")
SGD(lambda: 0.1), SGD(lambda step: 0.5**step), SGD(sc.schedules.Cosine(0.1, steps=9))
sc.optimizers.AdamW(learning_rate=0.1, clipvalue=(None, 2.0), preset="fbgemm")
sc.optimizers.OfSomebodyElse(1, 2, three=3)
reveal_type(sc.optimizers.LAMB(0.1).clip_norm)
"""
FOUND = """\
code.py:4: error: Unexpected keyword argument "learing_rate" for "Adam"; \
did you mean "learning_rate"?  [call-arg]
code.py:5: error: Argument 1 to "SGD" has incompatible type "str"; expected \
"float | Callable[[], SupportsFloat] | Callable[[int], Any]"  [arg-type]
code.py:9: note: Revealed type is "float | None"
Found 2 errors in 1 file (checked 1 source file)
"""


@pytest.mark.slow
def test_mypy_sees_a_misspelt_argument(tmp_path):
    assert checked(CODE, tmp_path) == FOUND


ACTIVATIONS = """\
import numpy as np
import shardcore as sc

user = sc.FeatureConfig(sc.TableConfig(3, 2))
with sc.ShardedEmbedding(user, sc.optimizers.SGD(0.1), seed=3) as engine:
    reveal_type(engine([[1]]).ndim)
    reveal_type(engine.lookup([[1]]).activations.ndim)
reveal_type(sc.ShardedEmbedding({"user": user}).dequeue()["user"].ndim)
reveal_type(sc.ShardedEmbedding([user]).dequeue()[0].ndim)
reveal_type(sc.ShardedEmbedding({"user": [user], "both": (user, user)}).dequeue())


def step(engine: sc.ShardedEmbedding, lookup: sc.Lookup) -> None:
    reveal_type(engine.dequeue())
    engine.apply([(lookup, np.ones((1, 2)))])


def named(name: str) -> sc.ShardedEmbedding:
    return sc.ShardedEmbedding({name: user})
"""
REVEALED = """\
code.py:6: note: Revealed type is "int"
code.py:7: note: Revealed type is "int"
code.py:8: note: Revealed type is "int"
code.py:9: note: Revealed type is "int"
code.py:10: note: Revealed type is "Any"
code.py:14: note: Revealed type is "Any"
Success: no issues found in 1 source file
"""


@pytest.mark.slow
def test_mypy_sees_the_structure_of_activations(tmp_path):
    assert checked(ACTIVATIONS, tmp_path) == REVEALED


def checked(code: str, folder: Path) -> str:
    """Return what mypy prints of `code`."""
    pytest.importorskip("mypy", reason="mypy is not installed; it is in the extra lint")
    (folder / "code.py").write_text(code, encoding="utf-8")
    sources = os.pathsep.join(str(ROOT / part) for part in ("", "backends", "plugins"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "code.py"]
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "MYPYPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    return run.stdout
