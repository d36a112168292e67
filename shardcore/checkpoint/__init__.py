"""Checkpoints: step directories of safetensors files under one checksummed manifest."""

from __future__ import annotations

from shardcore.checkpoint.checkpoint import Checkpoint
from shardcore.checkpoint.directory import latest, steps
from shardcore.checkpoint.inspection import inspect, verify

__all__ = ["Checkpoint", "steps", "latest", "inspect", "verify"]
