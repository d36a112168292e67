"""TPU, GPU and CPU devices through PJRT, with JAX as its client.

This module is the plugin; the backend itself is in `shardcore_pjrt.backend`, and JAX with it is
loaded when the backend is asked for. Listing it reads metadata only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from shardcore.errors import ShardcoreValueError
from shardcore.plugins import BackendSpec, CommandSpec, hookimpl
from shardcore_pjrt.capabilities import CAPABILITIES

if TYPE_CHECKING:
    import jax

    from shardcore.backend import Backend

__all__ = ["shardcore_backends", "shardcore_commands"]


@hookimpl
def shardcore_backends() -> Iterator[BackendSpec]:
    """Provide the backends ``"pjrt"`` and ``"tpu"``, which is the former on the platform TPU."""
    for name, make, platform in (("pjrt", _make, "cpu"), ("tpu", _make_tpu, "tpu")):
        yield BackendSpec(name, make, partial(_unavailable, platform), CAPABILITIES)


@hookimpl
def shardcore_commands() -> Iterator[CommandSpec]:
    """Provide the command ``shardcore plan``."""
    yield CommandSpec(
        "plan",
        "check whether a model fits on a TPU topology, by compiling for it",
        "shardcore_pjrt.planning.plan",
    )


def _unavailable(platform: str) -> str | None:
    from shardcore_pjrt.platform.installation import unavailable

    return unavailable(platform)


def _make(
    platform: str = "cpu",
    devices: int | Sequence[jax.Device] | None = None,
    lanes: int | None = None,
    exchange: Literal["gather", "all_to_all"] | None = None,
    strategy: Literal["sparsecore"] | None = None,
    batches: Literal["same", "own"] = "same",
    check_agreement: bool = False,
) -> Backend:
    from shardcore_pjrt.platform.installation import require

    require(platform)  # first: the backend's own imports would fail less clearly
    if strategy is not None:
        others = {"batches": (batches, "same"), "check_agreement": (check_agreement, False)}
        return _make_in_sparsecores(platform, devices, lanes, exchange, strategy, others)
    from shardcore_pjrt.backend import PjrtBackend

    return PjrtBackend(
        platform, devices, lanes, exchange, batches=batches, check_agreement=check_agreement
    )


def _make_in_sparsecores(
    platform: str,
    devices: Any,
    lanes: object,
    exchange: object,
    strategy: object,
    others: Mapping[str, tuple[object, object]],
) -> Backend:
    if strategy != "sparsecore":
        raise ShardcoreValueError(f"strategy must be None or 'sparsecore', got {strategy!r}")
    for argument, value in (("lanes", lanes), ("exchange", exchange)):
        if value is not None:
            raise ShardcoreValueError(
                f"{argument} must be None with strategy 'sparsecore', got {value!r}"
            )
    for argument, (value, default) in others.items():
        if value != default:
            raise ShardcoreValueError(
                f"{argument} must be {default!r} with strategy 'sparsecore', got {value!r}"
            )
    from shardcore_pjrt.sparsecore.backend import SparseCoreBackend

    return SparseCoreBackend(platform, devices)


def _make_tpu(
    devices: int | Sequence[jax.Device] | None = None,
    lanes: int | None = None,
    exchange: Literal["gather", "all_to_all"] | None = None,
    strategy: Literal["sparsecore"] | None = None,
    batches: Literal["same", "own"] = "same",
    check_agreement: bool = False,
) -> Backend:
    return _make("tpu", devices, lanes, exchange, strategy, batches, check_agreement)
