"""CPU devices that do what SparseCores do."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def emulated():
    """Let CPU devices run the package's calls; skip where it is not installed."""
    pytest.importorskip("jax_tpu_embedding", reason="jax_tpu_embedding is not installed")
    from sparsecore_emulator import register

    register()
