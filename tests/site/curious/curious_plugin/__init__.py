"""A plugin that asks the registry while the registry asks it."""

from shardcore import registry

registry.backends()
