"""The calls of jax-tpu-embedding that the programs are made of; the package is imported here alone.

It lowers them for TPUs only.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax

from shardcore_pjrt.sparsecore.buffers import BufferShape
from shardcore_pjrt.sparsecore.updates import RowUpdate

__all__ = ["CORES", "DeviceBuffers", "look_up", "update"]

CORES: Final = {"TPU v5": 4, "TPU v5p": 4, "TPU v6 lite": 2, "TPU7x": 2}
"""SparseCores of a device, by its kind as JAX has it."""

_FOLDER: Final = "jax_tpu_embedding.sparsecore.lib.core.primitives"
_GRADIENT: Final = "sparse_dense_matmul_grad_with_"
_MODULES: Final = {
    "SGD": "sgd",
    "Adagrad": "adagrad",
    "AdagradMomentum": "adagrad_momentum",
    "Adam": "adam",
    "FTRL": "ftrl",
}


class DeviceBuffers(NamedTuple):
    """The buffers of a batch on the devices, in the order of the operands."""

    row_pointers: jax.Array
    embedding_ids: jax.Array
    sample_ids: jax.Array
    gains: jax.Array
    num_minibatches: jax.Array


def primitive(name: str) -> Any:
    """Return one of the package's primitives: "csr", or an optimizer's.

    Parameters
    ----------
    name : str
        "csr" is the lookup.
    """
    module = "sparse_dense_matmul_csr" if name == "csr" else f"{_GRADIENT}{_MODULES[name]}"
    return getattr(importlib.import_module(f"{_FOLDER}.{module}"), f"tpu_{module}_primitive")


def look_up(buffers: DeviceBuffers, rows: jax.Array, cores: int, shape: BufferShape) -> jax.Array:
    """Return the sums of a device's bags, (bags, columns); called for each device.

    Parameters
    ----------
    buffers : DeviceBuffers
    rows : jax.Array
        Of the device.
    cores : int
        Of the device.
    shape : BufferShape
    """
    found: jax.Array = primitive("csr").bind(
        *buffers,
        rows,
        device_batch_size=cores * shape.bags,
        max_ids_per_partition=shape.limits.ids,
        max_unique_ids_per_partition=shape.limits.unique,
        enable_minibatching=shape.minibatched,
    )
    return found


def update(
    buffers: DeviceBuffers,
    arrays: Sequence[jax.Array],
    gradients: jax.Array,
    numbers: Sequence[jax.Array],
    shape: BufferShape,
    rule: RowUpdate,
) -> tuple[jax.Array, ...]:
    """Return a device's rows and slots after the update; called for each device.

    Parameters
    ----------
    buffers : DeviceBuffers
    arrays : sequence of jax.Array
        Rows and slots of the device.
    gradients : jax.Array
        Of the device's bags, (bags, columns).
    numbers : sequence of jax.Array
        As `numbers_of` returns them.
    shape : BufferShape
    rule : RowUpdate
    """
    found = primitive(rule.optimizer).bind(
        *buffers,
        *arrays,
        gradients,
        *numbers,
        max_ids_per_partition=shape.limits.ids,
        max_unique_ids_per_partition=shape.limits.unique,
        computation_name=f"{_MODULES[rule.optimizer]}_of_a_row",
        enable_minibatching=shape.minibatched,
        **dict(rule.options),
    )
    return tuple(jax.tree.leaves(found))
