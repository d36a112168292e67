"""What crosses between hosts: messages, each an array that one host sends to another, all counted.

Hosts share nothing else. What a host sends to itself is handed over and not counted.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Exchange"]


class Exchange:
    """The links between hosts.

    Parameters
    ----------
    hosts : int

    Attributes
    ----------
    messages, bytes : ndarray of int64, shape (hosts, hosts)
        What went from host i to host j since the start.

    Examples
    --------
    >>> links = Exchange(2)
    >>> links.send(np.zeros(3), 0, 1)
    array([0., 0., 0.])
    >>> int(links.bytes[0, 1]), int(links.messages.sum())
    (24, 1)
    """

    def __init__(self, hosts: int) -> None:
        self.messages = np.zeros((hosts, hosts), np.int64)
        self.bytes = np.zeros((hosts, hosts), np.int64)
        self._lock = threading.Lock()  # lookups come from any thread

    def send(self, array: NDArray[Any], source: int, target: int) -> NDArray[Any]:
        """Return `array` as `target` receives it: a copy, so that no memory is shared.

        An empty array is not sent.
        """
        if source == target:
            return array
        if array.size:
            with self._lock:
                self.messages[source, target] += 1
                self.bytes[source, target] += array.nbytes
        return array.copy()
