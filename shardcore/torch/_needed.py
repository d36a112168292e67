"""The package torch, or an error that says that it is missing. Imported before all that uses it."""

from __future__ import annotations

from shardcore.errors import UnavailableError

__all__ = ["TorchMissingError"]


class TorchMissingError(UnavailableError, ImportError):
    """PyTorch is not installed; an ImportError, as of every import that fails."""


try:
    import torch  # noqa: F401
except ImportError as error:
    raise TorchMissingError("shardcore.torch needs the package torch: pip install torch") from error
