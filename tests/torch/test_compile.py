"""Models that `torch.compile` has compiled: the modules stay outside of its graphs.

In a process of its own, as the compiler stays where it was imported.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

MODEL = """
import sys
import torch
import shardcore as sc
import shardcore.torch as st

ids = torch.tensor([[1, 2, 4], [4, 3, 9]])
one = [st.EmbeddingBagConfig(20, 4, "t", ["a", "b"])]
rest = {"_weight": torch.randn(20, 4)}


def optimizer():
    return sc.optimizers.SGD(0.5)


class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = st.EmbeddingBagCollection(one, optimizer=optimizer())

    def forward(self, ids):
        return self.tables({"a": ids, "b": ids}).values() * 2


MODULES = {
    "bag": lambda: st.EmbeddingBag(20, 4, padding_idx=1, optimizer=optimizer(), **rest),
    "max": lambda: st.EmbeddingBag(20, 4, mode="max", optimizer=optimizer(), **rest),
    "rows": lambda: st.Embedding(
        20, 4, max_norm=1.0, scale_grad_by_freq=True, optimizer=optimizer(), **rest
    ),
    "collection": Both,
}
made = []
for _ in range(2):
    torch.manual_seed(0)
    made.append(torch.nn.Sequential(MODULES[sys.argv[1]](), torch.nn.Linear(MODULES_DIM, 1)))
plain, inside = made
plain(ids).sum().backward()
print("torch._dynamo" in sys.modules)  # the compiler is not imported for a lookup
compiled = torch.compile(inside, backend="eager")
compiled(ids).sum().backward()
print(torch.equal(compiled(ids), plain(ids)), compiled(ids).requires_grad)
"""


@pytest.mark.parametrize("module", ["bag", "max", "rows", "collection"])
def test_a_compiled_model_is_trained_as_it_is(module):
    code = MODEL.replace("MODULES_DIM", "8" if module == "collection" else "4")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, module],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "False\nTrue True\n", done.stderr
