from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

__all__ = [
    "Mutex",
    "ReadWriteLock",
    "call_inside",
    "calling_thread",
    "is_inside",
    "read_all",
    "write_all",
]

def calling_thread() -> int: ...
def call_inside(owner: object, function: Callable[..., T], *arguments: object) -> T: ...
def is_inside(owner: object) -> bool: ...

class Mutex:
    def run(self, function: Callable[..., T], *arguments: object) -> T: ...

class ReadWriteLock:
    @property
    def number(self) -> int: ...
    @property
    def writers_waiting(self) -> int: ...
    def read(self, function: Callable[..., T], *arguments: object) -> T: ...
    def write(self, function: Callable[..., T], *arguments: object) -> T: ...

def read_all(
    locks: Iterable[ReadWriteLock], function: Callable[..., T], *arguments: object
) -> T: ...
def write_all(
    locks: Iterable[ReadWriteLock], function: Callable[..., T], *arguments: object
) -> T: ...
