"""A plugin that asks the registry while the registry asks it."""

from shardcore.plugins import registry

registry.backends()
