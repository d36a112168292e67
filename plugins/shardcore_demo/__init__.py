"""The main job, ``shardcore demo``: which module of the standard library is a function from?

::

    command    the command line, and the packages it needs
    options    the choices of one run, their defaults and rules
    corpus     the functions of a directory of Python files, and the module of each
    features   a function's text as a bag of hashed ids
    softmax    the dense layer behind the embedding, in NumPy
    model      the sharded table and the dense layer: lookup, training, checkpoint
    training   the epochs, with a progress bar and a checkpoint after each
    modules    what was learned: a vector per module, its neighbours, its place on a map
    picture    the map and the curves of the training
    run        the job from beginning to end, and its printed lines

It learns from the source code of the running Python and downloads nothing. `training`, `picture`
and `run` import the packages of the extra ``demo``; `command` imports `run` once they are there.
This module is the plugin: it comes through the same hook as a third party's command.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardcore.plugins import CommandSpec, hookimpl

__all__ = ["shardcore_commands"]


@hookimpl
def shardcore_commands() -> Iterator[CommandSpec]:
    """Provide the command ``shardcore demo``."""
    yield CommandSpec(
        "demo",
        "learn which module of the standard library a function comes from",
        "shardcore_demo.command",
    )
