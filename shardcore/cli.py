"""The console command ``shardcore``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import shardcore
from shardcore.errors import ShardcoreError
from shardcore.plugins import registry

__all__ = ["main"]

_FAILED = 2
_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_UNREAD = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of this process by default.

    Returns
    -------
    int
        0 on success, 2 after an error, 130 after an interruption, 141 where the reader of the
        output has gone; or what a plugin's command returns; its help says what the code means.

    Raises
    ------
    SystemExit
        If the command line itself is wrong (code 2), or asks for help (code 0).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser(words).parse_args(words)
        code: int | None = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _UNREAD
    except ShardcoreError as error:
        print(f"shardcore: error: {' '.join(str(error).split())}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt as interruption:
        saved = str(interruption) or "no checkpoint was saved"
        print(f"shardcore: interrupted: {saved}", file=sys.stderr)
        return _INTERRUPTED
    return code or 0


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardcore", description="Sharded embedding tables for any framework, on any device."
    )
    parser.add_argument("--version", action="version", version=f"shardcore {shardcore.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="versions, processor, threads, backends and plugins")
    info.set_defaults(run=_info)
    for command in registry.commands():
        added = commands.add_parser(command.name, help=command.help, description=command.help)
        if words[:1] == [command.name]:  # only the plugin whose command is run is imported
            module = importlib.import_module(command.module)
            module.add_arguments(added)
            added.set_defaults(run=module.run)
    return parser


def _info(arguments: argparse.Namespace) -> None:
    from shardcore.info import describe

    print("\n".join(describe()))


if __name__ == "__main__":
    sys.exit(main())
