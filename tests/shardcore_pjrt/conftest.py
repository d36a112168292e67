"""The tests of the backend `pjrt`: on eight CPU devices, and compiled for TPUs that are not there.

Where jax is missing, a module that imports it is skipped with that reason; the others run. Tests
marked ``libtpu`` need libtpu beside jax, but no TPU. ``SHARDCORE_PJRT_PLATFORM`` names another
platform for the tests that take the fixture `platform`, such as the conformance suite on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import re

import pytest

PLATFORM = os.environ.get("SHARDCORE_PJRT_PLATFORM", "cpu")
HAS_JAX = importlib.util.find_spec("jax") is not None
HAS_LIBTPU = HAS_JAX and importlib.util.find_spec("libtpu") is not None
OF_JAX = ("jax", "jaxlib", "optax")
EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"

# Read by XLA when its first client starts, which is in a test: no module starts one when imported.
if HAS_JAX:
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {EIGHT_DEVICES}".strip()
    if PLATFORM == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
# libtpu without a chip: ask no server which chips there are, share its lock with other test
# processes, keep its log to itself. On a host with chips the lock has its use.
if HAS_LIBTPU and PLATFORM != "tpu":
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TPU_LOG_DIR", "disabled")


class ModuleThatMayNeedJax(pytest.Module):
    """A test module; skipped if it cannot be imported for want of jax."""

    def collect(self):
        try:
            return list(super().collect())
        except self.CollectError as error:
            cause = error.__cause__
            if not (isinstance(cause, ModuleNotFoundError) and cause.name in OF_JAX):
                raise
            reason = f"{cause.name} is not installed"
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    # A module that is not found may be a plain mistake where jax is there.
    return None if HAS_JAX else ModuleThatMayNeedJax.from_parent(parent, path=module_path)


def pytest_make_parametrize_id(val):
    """Name a case by its settings; functions without their address, which differs by process."""
    return re.sub(r" at 0x\w+", "", str(val)) if isinstance(val, dict) else None


def pytest_collection_modifyitems(items):
    if HAS_LIBTPU:
        return
    skip = pytest.mark.skip(reason="libtpu is not installed")
    for item in items:
        if item.get_closest_marker("libtpu") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def platform():
    """Return the platform that a test of no platform in particular runs on."""
    return PLATFORM
