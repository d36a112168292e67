"""A compiler that answers what a test wants."""

from __future__ import annotations

import pytest
from shardcore_pjrt.planning import fits


@pytest.fixture
def no_compiler(monkeypatch):
    """Answer compilations with what the test wants, by the number of devices; count them."""
    asked = []

    def compiles(answer):
        def compile_it(mesh, geometry, dtype, shape, *_):
            asked.append((mesh.size, geometry.num_rows))
            return answer(geometry)

        monkeypatch.setattr(fits, "tpu_mesh", lambda topology, devices: FakeMesh(devices))
        monkeypatch.setattr(fits, "compile_lookup", compile_it)
        monkeypatch.setattr(fits, "compile_update", compile_it)
        return asked

    return compiles


class FakeMesh:
    def __init__(self, size):
        self.size = size
