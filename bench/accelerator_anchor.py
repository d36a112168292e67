"""A compact anchor on a GPU: one Triton kernel that sums gradients and updates rows in place.

It is the way of FBGEMM's fused update, for SGD and Adagrad, written here because FBGEMM's wheel for
GPUs is too large to carry: ids are sorted on the device in every call, the occurrences of a row lie
side by side then, and one program reads their gradients, adds them up and updates the row, whose
gradient is never in memory. One program does all occurrences of a row, so a very hot one takes its
time. A yardstick for the table beside torch, no part of the backend.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .accelerator_contenders import Torch
from .accelerator_workload import ACCUMULATOR, LEARNING_RATE

__all__ = ["TritonUpdate"]


class TritonUpdate(Torch):
    """torch's lookup, then the sort and the one kernel."""

    what = "Triton fused update"
    modules: ClassVar[tuple[str, ...]] = ("torch", "triton")

    @classmethod
    def missing(cls, platform: str) -> str | None:
        """Return why it cannot take part: on the CPU, Triton only interprets."""
        why = super().missing(platform)
        if why is None and platform != "cuda":
            why = "it is for CUDA devices"
        return why

    def _make(self) -> None:
        torch = self._torch
        super()._make()
        self._squares = torch.zeros(1, device=self._device)
        if self.optimizer == "Adagrad":
            self._squares = torch.full_like(self._weight(), ACCUMULATOR)
        self._rule = None

    def _step(self, ids: Any) -> Any:
        from .accelerator_kernel import update_rows

        torch, dim = self._torch, self.case.dim
        with torch.no_grad():
            activations = self._module(ids)
            named, order = torch.sort(ids)
            rows, counts = torch.unique_consecutive(named, return_counts=True)
            starts = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=self._device)
            torch.cumsum(counts, 0, out=starts[1:])
            update_rows[(rows.numel(),)](
                self._weight(), self._squares, self._gradient, rows, starts, order,
                self.case.pooling, LEARNING_RATE, dim=dim, block=1 << (dim - 1).bit_length(),
                adagrad=self.optimizer == "Adagrad", num_warps=1 if dim <= 64 else 2,
            )  # fmt: skip
        return activations
