"""What the optional parts of shardcore need, in the words of a command that installs it."""

from __future__ import annotations

import re

__all__ = ["pip_install"]


def pip_install(extra: str, option: str = "") -> str:
    """Return the command that installs what an extra asks for, to end a message with.

    It names the packages themselves, as the metadata of this installation lists them, and so needs
    no clone and no index that has shardcore.

    Parameters
    ----------
    extra : str
        Of ``pyproject.toml``.
    option : str
        Of ``pip install``.

    Examples
    --------
    >>> pip_install("bfloat16")
    "pip install 'ml_dtypes>=0.5'"
    """
    from importlib.metadata import PackageNotFoundError, requires  # slow; only messages need it

    command = f"pip install {option}".strip()
    try:
        required = requires("shardcore") or []
    except PackageNotFoundError:
        required = []
    found = []
    for line in required:
        requirement, _, marker = line.partition(";")
        if re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", marker):
            found.append(f"'{requirement.strip()}'")
    if not found:  # a clone that is imported without being installed
        return f"{command} '.[{extra}]' in the clone of shardcore"
    return f"{command} {' '.join(found)}"
