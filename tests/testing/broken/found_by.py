"""The mark of a faulty class: the test that must find its fault, and with which words.

Faulty classes are not collected by their files' names; `test_conformance.py` runs them.
"""

from __future__ import annotations

__all__ = ["found_by"]


def found_by(test, words):
    """Return a decorator that leaves the class as it is: `test_conformance.py` reads the source."""
    return lambda suite: suite
