"""Models that are planned for: their tables in a file, and the ids that reach them.

::

    model_file        a model as a TOML file
    id_distribution   how often which row is named
"""

from __future__ import annotations

from shardcore.planning.id_distribution import IdDistribution
from shardcore.planning.model_file import Model, ModelTable, example_model, load_model

__all__ = ["Model", "ModelTable", "example_model", "load_model", "IdDistribution"]
