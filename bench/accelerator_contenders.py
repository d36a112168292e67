"""Who is measured on an accelerator: our two programs, our engine, torch, FBGEMM.

A contender holds one table and, for steps, what its optimizer keeps, and does the same work as all
others. ``call`` starts a lookup or a step and may return before the device is done; ``wait`` waits.
"""

from __future__ import annotations

import gc
import importlib
from abc import ABC, abstractmethod
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import shardcore as sc
from shardcore.backend import FeatureBags

from .accelerator_workload import ACCUMULATOR, LEARNING_RATE, Case, gradient_of, row_values

__all__ = ["PEERS", "Contender", "Engine", "Fbgemm", "Programs", "Torch"]


class Contender(ABC):
    """One table and one way to look it up and to update it.

    Parameters
    ----------
    case : Case
    ids : NDArray
        Of the batch.
    optimizer : str or None
        None: it is only looked up.
    from_host : bool
        Whether every call starts from ids in host memory, or from whatever it made of them before.
    """

    what: ClassVar[str]
    preparing: float = 0.0
    """Seconds that were spent on the ids before the first call, for which peers work in each."""

    def __init__(
        self, case: Case, ids: NDArray[np.int64], optimizer: str | None, from_host: bool
    ) -> None:
        self.case, self.ids, self.optimizer = case, ids, optimizer
        self.from_host = from_host

    @staticmethod
    def missing(platform: str) -> str | None:
        """Return why it cannot take part; None where it can."""
        return None

    @property
    def starts_from_zeros(self) -> bool:
        return False

    @abstractmethod
    def call(self) -> Any:
        """Start a lookup, or a step; return the activations."""

    @abstractmethod
    def wait(self, found: Any) -> None:
        """Wait until the device has done all that was started; `found` is the last result."""

    @abstractmethod
    def bags_of(self, found: Any, bags: NDArray[np.int64]) -> NDArray[Any]:
        """Return some activations as a NumPy array."""

    @abstractmethod
    def rows_of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows as a NumPy array."""

    def close(self) -> None:
        """Give the memory back."""
        self.__dict__.clear()
        gc.collect()


def our_optimizer(name: str) -> sc.Optimizer:
    found: sc.Optimizer
    if name == "SGD":
        found = sc.optimizers.SGD(learning_rate=LEARNING_RATE)
    else:
        found = sc.optimizers.Adagrad(
            learning_rate=LEARNING_RATE, initial_accumulator_value=ACCUMULATOR
        )
    return found


class Programs(Contender):
    """The lookup and the update program of the backend, on lists that are on the device already."""

    what = "shardcore, programs"

    def __init__(self, case: Case, ids: Any, optimizer: str | None, from_host: bool) -> None:
        super().__init__(case, ids, optimizer, from_host)
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from shardcore_pjrt.mesh.geometry import Geometry
        from shardcore_pjrt.platform.installation import devices_of
        from shardcore_pjrt.programs.lookup_program import lookup_program
        from shardcore_pjrt.programs.update_program import update_program
        from shardcore_pjrt.routing.lookup_route import route_lookup
        from shardcore_pjrt.routing.update_route import route_update

        self._jax = jax
        self._mesh = mesh = Mesh(np.array(devices_of(case.platform, 1)), ("x",))
        lanes = 128 if case.platform == "tpu" else 1
        self._geometry = geometry = Geometry(case.rows, case.dim, 1, "row", lanes, "div")
        cut, whole = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())

        def placed(arrays: dict[str, Any]) -> dict[str, Any]:
            return {
                name: jax.device_put(array, cut if np.ndim(array) else whole)
                for name, array in arrays.items()
            }

        self._rows = self._made(partial(_table, geometry.table_shape, geometry))
        bags = FeatureBags(ids, np.arange(case.bags + 1, dtype=np.int64) * case.pooling)
        rule = None if optimizer is None else our_optimizer(optimizer)

        def prepared() -> float:
            """Route the ids on the host, put the lists on the device; return the seconds."""
            start = perf_counter()
            self._route = route_lookup(geometry, [bags], "local")
            self._lists = placed(self._route.arrays)
            if rule is not None:
                self._update_route = route_update(
                    geometry, [bags], "local", rule.accumulate, rule.lazy
                )
                self._update_lists = placed(self._update_route.arrays)
                jax.block_until_ready(self._update_lists)
            jax.block_until_ready(self._lists)
            return perf_counter() - start

        self.preparing = min(prepared() for _ in range(3))
        route = self._route
        self._lookup = lookup_program(mesh, geometry, route.shape)
        if rule is None:
            return
        dtype = np.dtype(np.float32)
        self._slots = {
            slot.name: self._made(partial(_filled, geometry.table_shape, slot.fill))
            for slot in rule.slots
        }
        update = self._update_route.shape
        self._update = update_program(mesh, geometry, update, rule, dtype)
        self._gradient = jax.device_put(gradient_of(case), cut)
        hyper, step = np.array(rule.hyper(), np.float32), np.array(1, np.int32)
        seed, go = np.zeros(2, np.uint32), np.array(True)
        self._numbers = jax.device_put((hyper, step, seed, go), whole)

    def _made(self, make: Any) -> Any:
        sharding = self._jax.sharding.NamedSharding(
            self._mesh, self._jax.sharding.PartitionSpec("x", None)
        )
        return self._jax.jit(make, out_shardings=sharding)()

    def call(self) -> Any:
        (activations,) = self._lookup(self._rows, self._lists)
        if self.optimizer is not None:
            self._rows, self._slots = self._update(
                self._rows, self._slots, (self._gradient,), self._update_lists, *self._numbers
            )
        return activations

    def wait(self, found: Any) -> None:
        self._jax.block_until_ready((found, self._rows))

    def bags_of(self, found: Any, bags: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(found[bags])

    def rows_of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        lines, place = np.divmod(rows, self._geometry.rows_per_line)
        found = np.asarray(self._rows[lines])
        found = found.reshape(rows.size, self._geometry.rows_per_line, self._geometry.width)
        return found[np.arange(rows.size), place, : self.case.dim]


def _table(shape: tuple[int, int], geometry: Any) -> Any:
    from jax import lax, numpy

    line = lax.broadcasted_iota(numpy.uint32, shape, 0)
    column = lax.broadcasted_iota(numpy.uint32, shape, 1)
    width = numpy.uint32(geometry.width)
    row = line * numpy.uint32(geometry.rows_per_line) + column // width
    return row_values(row, column % width, whole=numpy.uint32)


def _filled(shape: tuple[int, int], value: float) -> Any:
    from jax import numpy

    return numpy.full(shape, value, numpy.float32)


class Engine(Contender):
    """What a user calls: ids are routed on the host in every call, gradients are on the device."""

    what = "shardcore, engine"

    def __init__(self, case: Case, ids: Any, optimizer: str | None, from_host: bool) -> None:
        super().__init__(case, ids, optimizer, from_host)
        import jax
        from shardcore_pjrt.platform.installation import devices_of

        self._jax = jax
        (device,) = devices_of(case.platform, 1)
        table = sc.TableConfig(
            case.rows,
            case.dim,
            initializer=sc.initializers.Zeros(),
            combiner="sum",
            name="items",
        )
        self._engine = sc.ShardedEmbedding(
            sc.FeatureConfig(table),
            optimizer=None if optimizer is None else our_optimizer(optimizer),
            backend="pjrt",
            backend_options={"platform": case.platform, "devices": [device]},
        )
        self._engine.build()
        self._batch = (ids, np.arange(case.bags + 1, dtype=np.int64) * case.pooling)
        self._gradient = jax.device_put(gradient_of(case), device)

    @property
    def starts_from_zeros(self) -> bool:
        return True

    def call(self) -> Any:
        if self.optimizer is None:
            return self._engine(self._batch)
        self._engine.enqueue(self._batch)
        activations = self._engine.dequeue()
        self._engine.apply_gradients(self._gradient)
        return activations

    def wait(self, found: Any) -> None:
        self._jax.block_until_ready(found)
        self._engine.tables["items"][:1]  # a read waits for the updates

    def bags_of(self, found: Any, bags: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(found)[bags]

    def rows_of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self._engine.tables["items"][rows])

    def close(self) -> None:
        self._engine.close()
        super().close()


class Torch(Contender):
    """``torch.nn.EmbeddingBag(sparse=True)``, and torch's optimizer on its sparse gradients."""

    what = "torch EmbeddingBag"
    modules: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, case: Case, ids: Any, optimizer: str | None, from_host: bool) -> None:
        super().__init__(case, ids, optimizer, from_host)
        self._torch = torch = importlib.import_module("torch")
        self._device = "cuda" if case.platform == "cuda" else "cpu"
        self._gradient = torch.tensor(gradient_of(case), device=self._device)
        self._host_ids = torch.from_numpy(ids)
        self._ids = self._host_ids.to(self._device)
        self._offsets = self._make_offsets()
        self._make()
        self._fill(self._weight())

    @classmethod
    def missing(cls, platform: str) -> str | None:
        try:
            modules = [importlib.import_module(name) for name in cls.modules]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if platform not in ("cpu", "cuda"):
            return f"it does not run on {platform}"
        if platform == "cuda" and not modules[0].cuda.is_available():
            return "this torch has no CUDA device"
        return None

    def _make_offsets(self) -> Any:
        return self._torch.arange(0, self.case.occurrences, self.case.pooling, device=self._device)

    def _make(self) -> None:
        torch, case = self._torch, self.case
        weight = torch.empty((case.rows, case.dim), device=self._device)
        self._bag = torch.nn.EmbeddingBag(
            case.rows, case.dim, mode="sum", sparse=True, _weight=weight
        )
        if self.optimizer == "SGD":
            self._rule = torch.optim.SGD(self._bag.parameters(), lr=LEARNING_RATE)
        elif self.optimizer == "Adagrad":
            self._rule = torch.optim.Adagrad(
                self._bag.parameters(),
                lr=LEARNING_RATE,
                initial_accumulator_value=ACCUMULATOR,
                eps=0.0,
            )

    def _weight(self) -> Any:
        return self._bag.weight.detach()

    def _fill(self, weight: Any) -> None:
        columns = self._torch.arange(self.case.dim, device=self._device)
        step = 1 << 20
        for start in range(0, self.case.rows, step):
            stop = min(start + step, self.case.rows)
            rows = self._torch.arange(start, stop, device=self._device)[:, None]
            weight[start:stop] = row_values(rows, columns)

    def _module(self, ids: Any) -> Any:
        return self._bag(ids, self._offsets)

    def call(self) -> Any:
        ids = self._host_ids.to(self._device) if self.from_host else self._ids
        if self.optimizer is None:
            with self._torch.no_grad():
                return self._module(ids)
        return self._step(ids)

    def _step(self, ids: Any) -> Any:
        self._rule.zero_grad(set_to_none=True)
        activations = self._module(ids)
        activations.backward(self._gradient)
        self._rule.step()
        return activations.detach()

    def wait(self, found: Any) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def bags_of(self, found: Any, bags: NDArray[np.int64]) -> NDArray[Any]:
        picked: NDArray[Any] = found[self._torch.tensor(bags, device=self._device)].cpu().numpy()
        return picked

    def rows_of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.bags_of(self._weight(), rows)

    def close(self) -> None:
        torch = self._torch
        super().close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class Fbgemm(Torch):
    """FBGEMM's table batched embedding bags, whose backward pass is the update."""

    what = "FBGEMM TBE"
    modules = ("torch", "fbgemm_gpu")

    def _make_offsets(self) -> Any:
        ends = range(0, self.case.occurrences + 1, self.case.pooling)
        return self._torch.tensor(ends, device=self._device)

    def _make(self) -> None:
        module = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        kinds = importlib.import_module("fbgemm_gpu.split_embedding_configs").EmbOptimType
        on_gpu = self._device == "cuda"
        place = common.EmbeddingLocation.DEVICE if on_gpu else common.EmbeddingLocation.HOST
        device = module.ComputeDevice.CUDA if on_gpu else module.ComputeDevice.CPU
        self._bag = module.SplitTableBatchedEmbeddingBagsCodegen(
            [(self.case.rows, self.case.dim, place, device)],
            pooling_mode=common.PoolingMode.SUM,
            optimizer=kinds.EXACT_ADAGRAD if self.optimizer == "Adagrad" else kinds.EXACT_SGD,
            learning_rate=LEARNING_RATE,
            eps=0.0,
        )
        for states in self._bag.split_optimizer_states():
            for state in states:
                state.fill_(ACCUMULATOR)

    def _weight(self) -> Any:
        return self._bag.split_embedding_weights()[0]

    def _step(self, ids: Any) -> Any:
        activations = self._module(ids)
        activations.backward(self._gradient)
        return activations.detach()


PEERS: tuple[type[Torch], ...] = (Torch, Fbgemm)
