"""The packages tensorflow and keras, or an error that says that one is missing. Imported first."""

from __future__ import annotations

from shardcore.errors import UnavailableError

__all__ = ["TensorFlowMissingError"]


class TensorFlowMissingError(UnavailableError, ImportError):
    """TensorFlow is not installed; an ImportError, as of every import that fails."""


try:
    import keras
    import tensorflow  # noqa: F401
except ImportError as error:
    raise TensorFlowMissingError(
        "shardcore.tf needs the package tensorflow, of 2.18 or later: pip install tensorflow"
    ) from error

if keras.__version__.split(".")[0] < "3" or keras.backend.backend() != "tensorflow":
    raise UnavailableError(
        "shardcore.tf needs Keras 3 on TensorFlow, got Keras "
        f"{keras.__version__} on {keras.backend.backend()}: set the environment variable "
        "KERAS_BACKEND=tensorflow before keras is imported"
    )
