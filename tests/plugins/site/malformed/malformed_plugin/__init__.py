"""Plugins whose hooks yield what they must not; each module is an entry point."""
