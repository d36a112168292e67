"""``help(shardcore.optimizers.Adam)`` shows each of its parameters, the common ones too."""

from __future__ import annotations

import inspect
import re
import sys

import pytest
from shardcore_optimizers.row_steps import RowSteps

from shardcore import optimizers
from shardcore.plugins import registry

FIRST_PARTY = [
    name
    for name in registry.optimizers()
    if registry.get_optimizer(name).__module__.startswith("shardcore_optimizers.")
]


def entries(text: str) -> dict[str, str]:
    """Return the parameters of a docstring with what it says of each."""
    section = re.search(r"^Parameters\n-+\n(.*?\n)\n", inspect.cleandoc(text), re.M | re.S)[1]
    found = {}
    for head, body in re.findall(r"^(\S.*)\n((?: +.*\n)*)", section, re.M):
        for name in head.partition(" :")[0].split(", "):
            assert name not in found
            found[name] = body
    return found


@pytest.mark.skipif(sys.flags.optimize > 1, reason="python -OO keeps no docstrings")
@pytest.mark.parametrize("name", FIRST_PARTY)
def test_every_parameter_is_told_once(name):
    optimizer = getattr(optimizers, name)
    told = entries(optimizer.__doc__)
    assert sorted(told) == sorted(inspect.signature(optimizer).parameters)
    for common, text in entries(RowSteps.__doc__).items():
        if common == "decoupled_weight_decay" and name in ("LAMB", "LARS"):
            text = "    False: `weight_decay_factor` is the λ above. True: rows decay before, and "
            text += "λ is 0."
        assert told[common].split() == text.split()
