"""The listed topologies are those that libtpu describes, with the memory its compiler sees."""

from __future__ import annotations

import re

import numpy as np
import pytest
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning.ahead_of_time import Refused, compile_lookup, lookup_shape, tpu_mesh
from shardcore_pjrt.planning.topologies import LISTED, generation_of, topology

from shardcore.backend.messages import FeatureBags
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

GENERATIONS = ("v3", "v4", "v5e", "v5p", "v6e", "tpu7x")


def test_what_is_listed():
    found = topology("v5p:2x4x4")
    assert (found.generation, found.chips, found.devices) == ("v5p", 32, 32)
    assert topology("v4:2x2x2").devices == 2 * topology("v4:2x2x2").chips == 16
    assert {one.generation for one in LISTED.values()} == set(GENERATIONS)
    assert all(name == one.name for name, one in LISTED.items())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_generation_goes_from_small_to_large(generation):
    sizes = [one.devices for one in generation_of(generation)]
    assert sizes == sorted(set(sizes))
    assert len(sizes) >= 7


def test_messages():
    message = "topology must be one of v3:2x2, 4x4, 4x8, 8x8, 8x16, 16x16, 16x32, 32x32; v4:2x2x1, "
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}.*; got 'v5e:4x5'$"):
        topology("v5e:4x5")
    with pytest.raises(ShardcoreTypeError, match=r"^topology must be a str, got 16$"):
        topology(16)


@pytest.mark.libtpu
def test_libtpu_describes_every_one():
    assert {name: tpu_mesh(one).size for name, one in LISTED.items()} == {
        name: one.devices for name, one in LISTED.items()
    }
    assert tpu_mesh(topology("v5e:4x4"), 1).size == 1


@pytest.mark.libtpu
@pytest.mark.parametrize("generation", GENERATIONS)
def test_memory_is_what_the_compiler_says(generation):
    smallest = generation_of(generation)[0]
    geometry = Geometry(1 << 30, 128, smallest.devices, "replicated", 128)
    shape = lookup_shape(geometry, [FeatureBags(np.arange(64), np.arange(0, 65, 4))])
    refused = compile_lookup(tpu_mesh(smallest), geometry, np.dtype(np.float32), shape)
    assert isinstance(refused, Refused)
    assert refused.required >= (1 << 30) * 128 * 4
    assert f"exceeds available HBM ({smallest.hbm / 2**30:.2f}G)" in refused.message
    assert abs(refused.available - smallest.hbm) <= 1
