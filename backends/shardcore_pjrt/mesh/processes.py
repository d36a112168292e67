"""The processes of one program: they make the same calls with what they agree on, or all raise.

JAX runs a program of several processes as if it were one: each of them starts the same device
programs in the same order, with the same arguments. Were one given another batch, rows would be
wrong, or devices would wait for each other for ever. So each call here begins with a message of
fixed size that all devices exchange by one small program: the call, and a checksum of its
arguments. All processes get all messages, so all of them raise or none. Where each has a batch of
its own, the message has its counts too, or the error by which the process refuses the batch.

A process that reads or writes files for a while reports every second that it is busy, and the
others wait on: only one that is dead or stuck meets the time limit of collectives, which the user
sets.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from shardcore import errors
from shardcore.backend import Part, Read
from shardcore.errors import ShardcoreError, ShardcoreRuntimeError, ShardcoreValueError
from shardcore.store import calling_thread
from shardcore_pjrt.mesh.own_devices import places_of_processes
from shardcore_pjrt.mesh.placing import fetched, over_devices, resharding_program, whole

__all__ = ["Processes", "processes_of"]

PAUSE: Final = 1.0
"""Seconds between two messages of a process that is busy."""

_HEAD: Final = struct.Struct("<16sIII")
_WORDS: Final = 128
_ROOM: Final = 4 * _WORDS - _HEAD.size

_BUSY, _FAILED, _REFUSED = "busy", "failed", "refused"
_FOLLOWS, _READS, _SAVED = "follows", "reads", "saved"


@dataclass(frozen=True)
class _Message:
    """A message to the other processes: a word, the checksum of the parts and their number."""

    word: str
    checksum: int = 0
    parts: int = 0
    body: bytes = b""

    def packed(self) -> NDArray[np.uint32]:
        body = self.body[:_ROOM]
        head = _HEAD.pack(self.word.encode(), self.checksum, self.parts, len(body))
        return np.frombuffer((head + body).ljust(4 * _WORDS, b"\0"), np.uint32)

    @classmethod
    def unpacked(cls, words: NDArray[np.uint32]) -> _Message:
        raw = words.tobytes()
        word, checksum, parts, size = _HEAD.unpack_from(raw)
        body = raw[_HEAD.size : _HEAD.size + size]
        return cls(word.rstrip(b"\0").decode(), checksum, parts, body)


def _checksum(part: Any) -> int:
    if isinstance(part, np.ndarray):
        kind = zlib.crc32(f"{part.dtype}{part.shape}".encode())
        return zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, kind)
    return zlib.crc32(part.encode() if isinstance(part, str) else part)


@cache
def processes_of(mesh: Mesh) -> Processes:
    """Return the processes whose devices a mesh has: one object for all backends on it."""
    return Processes(mesh)


class Processes:
    """The processes of a mesh, seen from one of them.

    Parameters
    ----------
    mesh : Mesh
        Of one axis, "x".

    Attributes
    ----------
    numbers : list of int
        As JAX counts processes, in the order of the mesh; the first is the one that writes.
    several : bool
        Whether there is more than one; if not, there is nothing to agree on.
    lock : threading.RLock
        Held from an agreement until the programs that it is about were started.
    """

    def __init__(self, mesh: Mesh) -> None:
        places = places_of_processes(mesh)
        self.numbers = list(places)
        self.several = len(self.numbers) > 1
        self.lock = threading.RLock()
        self._mesh = mesh
        self._places = list(places.values())
        self._own = mesh.devices.flat[0].client.process_index()
        self._own_places = places.get(self._own, [])
        self._in_save = [(_READS, _SAVED), *[(_FOLLOWS,)] * (len(self.numbers) - 1)]
        self._caller: tuple[int, str] | None = None
        self._rest: threading.Event | None = None  # set: the process is no longer busy
        self._known: BaseException | None = None  # the error that every process has raised

    # --- agreement -------------------------------------------------------------------------------

    def agree(self, call: str, parts: Iterable[Part]) -> None:
        """Raise, in every process, unless all make this call with the same parts.

        Parameters
        ----------
        call : str
            At most 16 characters.
        parts : iterable of (str, bytes, str or ndarray)
            Names and the values that must be the same. With one process they are not read.

        Raises
        ------
        ShardcoreValueError
            If something differs: it names the call, what differs, and a process where it does.
        ShardcoreRuntimeError
            If another process makes another call, has failed, or does not answer in time; or if the
            calls of this process come from several threads.
        """
        if self.several:
            self._agreed(call, parts)

    def counted(
        self, call: str, parts: Iterable[Part], numbers: Sequence[int] = ()
    ) -> NDArray[np.int64]:
        """Return numbers of every process, which all make this call with the same parts.

        Parameters
        ----------
        call : str
        parts : iterable of (str, bytes, str or ndarray)
            As in `agree`. They decide how many numbers there are.
        numbers : sequence of int
            Of this process.

        Returns
        -------
        ndarray of int64, shape (processes, n)

        Raises
        ------
        ShardcoreError
            As `agree`; or what another process raised by `refuse`.
        """
        own = np.array(numbers, np.int64).tobytes()
        with self.lock:
            messages = self._agreed(call, parts, own if len(own) <= _ROOM else b"")
            found = [message.body for message in messages]
            if len(own) > _ROOM:
                words = np.frombuffer(own, np.uint32)
                given = self.gathered(call, words, [words.size] * len(found), words.size)
                found = [one.tobytes() for one in given]
        return np.array([np.frombuffer(one, np.int64) for one in found])

    def gathered(
        self, call: str, words: NDArray[np.uint32], sizes: Sequence[int], room: int
    ) -> list[NDArray[np.uint32]]:
        """Return words of every process: of as many as all know by now that each gives.

        Parameters
        ----------
        call : str
        words : ndarray of uint32, shape (n,)
            Of this process.
        sizes : sequence of int
            How many each process gives.
        room : int
            Words that a device takes; those of each process fit on its devices.

        Raises
        ------
        ShardcoreRuntimeError
            If another process has failed, or does not answer in time.
        """
        own = np.zeros((len(self._own_places), room), np.uint32)
        own.reshape(-1)[: words.size] = words
        with self.lock:
            everyone = self._shown(call, own)
        return [
            everyone[places].reshape(-1)[:size]
            for places, size in zip(self._places, sizes, strict=True)
        ]

    def refuse(self, call: str, error: Exception) -> None:
        """Raise, in every process, an error that this one met on its way to a call.

        The others raise it where they agree on the call, or on another. Of several processes that
        refuse something, all raise the error of the first. One that all have raised already, or
        that broke the connection between them, is left to the caller.
        """
        if not self.several or error is self._known:
            return
        if isinstance(error, jax.errors.JaxRuntimeError):
            return
        self._check_thread(call)
        text = f"{type(error).__name__}: {error}".encode()
        with self.lock:
            try:
                messages = self._settled(call, _Message(_REFUSED, body=text))
                self._check_words(call, messages, [(_REFUSED,)] * len(messages))
            except ShardcoreError as told:
                raise told from error

    @contextmanager
    def telling(self, call: str) -> Iterator[None]:
        """Return a context whose error is one of all processes: see `refuse`."""
        try:
            yield
        except Exception as error:
            self.refuse(call, error)
            raise

    def _agreed(self, call: str, parts: Iterable[Part], body: bytes = b"") -> list[_Message]:
        """Return the message of every process, all of the same call and parts."""
        self._check_thread(call)
        sums = [(name, _checksum(part)) for name, part in parts]
        together = zlib.crc32(repr(sums).encode())
        with self.lock:
            messages = self._settled(call, _Message(call, together, len(sums), body))
            self._check_words(call, messages, [(call,)] * len(messages))
            for at, message in enumerate(messages):
                if message.checksum != messages[0].checksum:
                    name = self._first_difference(call, sums, messages, at)
                    raise self._raised(
                        ShardcoreValueError(
                            f"{call} must be given the same in every process, but process "
                            f"{self.numbers[at]} has not the {name} of process {self.numbers[0]}"
                        )
                    )
        return messages

    def _check_thread(self, call: str) -> None:
        thread = calling_thread()  # changes are made in another one, on its behalf
        first, first_call = self._caller = self._caller or (thread, call)
        if thread != first:
            names = {one.ident: one.name for one in threading.enumerate()}
            raise ShardcoreRuntimeError(
                "over several processes all calls must come from one thread, since each of them "
                f"starts device programs in one order (so pipeline must be False): {call} came "
                f"from {names.get(thread)!r}, {first_call} from {names.get(first)!r}"
            )

    def _first_difference(
        self, call: str, sums: list[tuple[str, int]], messages: list[_Message], at: int
    ) -> str:
        """Return the name of the first part that differs in the process at `at`."""
        for part in range(min(messages[0].parts, messages[at].parts)):
            # A process with fewer parts takes part with zeros: all make as many exchanges.
            name, checksum = sums[part] if part < len(sums) else ("", 0)
            sent = self._settled(call, _Message(call, checksum, body=name.encode()))
            if (sent[0].checksum, sent[0].body) != (sent[at].checksum, sent[at].body):
                return sent[at].body.decode(errors="replace")
        return "number of parts"

    def _check_words(
        self, call: str, messages: list[_Message], expected: Sequence[tuple[str, ...]]
    ) -> None:
        """Raise unless every process sent one of the words expected of it."""
        for number, message in zip(self.numbers, messages, strict=True):
            if message.word in (_FAILED, _REFUSED):
                raise self._raised(self._failure(call, number, message))
        if all(sent.word in words for sent, words in zip(messages, expected, strict=True)):
            return
        came_to = ", ".join(
            f"process {number} came to {message.word!r}"
            for number, message in zip(self.numbers, messages, strict=True)
        )
        raise self._raised(
            ShardcoreRuntimeError(
                f"all processes must make the same calls in the same order: {came_to}"
            )
        )

    def _failure(self, call: str, number: int, message: _Message) -> ShardcoreError:
        """Return the error to raise for one of a process: of the same class, if it is ours."""
        kind, _, text = message.body.decode(errors="replace").partition(": ")
        known = getattr(errors, kind, None) if kind in errors.__all__ else None
        of_kind = known or ShardcoreRuntimeError
        reason = text if known else f"{kind}: {text}"
        failed = f"process {number}: {reason}"
        if message.word == _FAILED:
            failed = f"{call}: process {number} failed: {reason}"
        error: ShardcoreError = of_kind(failed)
        return error

    def _raised(self, error: ShardcoreError) -> ShardcoreError:
        """Return an error that every process raises now: none waits for a message any more."""
        self._known = error
        if self._rest is not None:
            self._rest.set()
        return error

    # --- messages --------------------------------------------------------------------------------

    def _settled(self, call: str, message: _Message) -> list[_Message]:
        """Return the message of every process, once none is busy."""
        while True:
            messages = self._exchanged(call, message)
            if all(one.word != _BUSY for one in messages):
                return messages

    def _exchanged(self, call: str, message: _Message) -> list[_Message]:
        """Return the message that every process sends now."""
        words = message.packed()
        everyone = self._shown(call, np.broadcast_to(words, (len(self._own_places), _WORDS)))
        return [_Message.unpacked(everyone[places[0]]) for places in self._places]

    def _shown(self, call: str, own: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return a line of words of every device; `own` are those of the process's devices."""
        line = dict(zip(self._own_places, own, strict=True))
        lines = jax.make_array_from_callback(
            (self._mesh.size, own.shape[1]),
            over_devices(self._mesh),
            lambda index: line[index[0].start or 0][None],
        )
        try:
            return fetched(resharding_program(whole(self._mesh))(lines))
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # one failure, two classes
            raise self._raised(
                ShardcoreRuntimeError(
                    f"{call}: another process is dead or stuck, or did not come to this call "
                    f"within the time limit of collectives: {error}"
                )
            ) from error

    def _fail(self, call: str, error: BaseException) -> None:
        """Send the others an error raised here, unless they raised it too or cannot be reached."""
        if error is self._known or not isinstance(error, Exception):
            return
        if isinstance(error, jax.errors.JaxRuntimeError):
            return
        text = f"{type(error).__name__}: {error}".encode()
        with self.lock:
            try:
                self._settled(call, _Message(_FAILED, body=text))
            except ShardcoreRuntimeError as unreached:
                error.add_note(f"this error could not be sent to the other processes: {unreached}")
            finally:
                if self._rest is not None:
                    self._rest.set()

    @contextmanager
    def _busy(self, call: str) -> Iterator[None]:
        """Send every second, whenever the lock is free, that this process is busy."""
        rest = self._rest = threading.Event()

        def say_so() -> None:
            while not rest.wait(PAUSE):
                with self.lock:
                    if rest.is_set():
                        return
                    try:
                        self._exchanged(call, _Message(_BUSY))
                    except ShardcoreRuntimeError:  # raised again by the next call that needs them
                        return

        thread = threading.Thread(target=say_so, name="shardcore-busy", daemon=True)
        thread.start()
        try:
            yield
        finally:
            rest.set()
            thread.join()
            self._rest = None

    # --- checkpoints -----------------------------------------------------------------------------

    def save(
        self,
        parts: Iterable[Part],
        reads: Mapping[str, Read],
        write: Callable[[Mapping[str, Read]], None],
    ) -> None:
        """Let the first process write a checkpoint; all read its tensors, part by part, as it asks.

        Parameters
        ----------
        parts : iterable of (str, bytes, str or ndarray)
            Names and the values that must be the same in all processes.
        reads : mapping of str to callable
        write : callable
            Called in the first process.

        Raises
        ------
        ShardcoreError
            The error of `write` or of a read, in every process; or as `agree`.
        """
        self.agree("save", [*parts, ("tensors", "\n".join(reads))])
        if self._own == self.numbers[0]:
            self._lead(reads, write)
            return
        try:
            self._follow(reads)
        except BaseException as error:
            self._fail("save", error)
            raise

    def _lead(self, reads: Mapping[str, Read], write: Callable[[Mapping[str, Read]], None]) -> None:
        with self._busy("save"):
            try:
                write({name: self._led(at, name, reads[name]) for at, name in enumerate(reads)})
                with self.lock:
                    self._command(_Message(_SAVED))
                    assert self._rest is not None, "the process is busy"
                    self._rest.set()  # before the lock is free: no process answers any more
            except BaseException as error:
                self._fail("save", error)
                raise

    def _led(self, at: int, name: str, read: Read) -> Read:
        def read_by_all(place: tuple[int, ...]) -> NDArray[Any]:
            with self.lock:
                self._command(_Message(_READS, body=np.array((at, *place), np.int64).tobytes()))
                values = read(place)
                self.agree("save", [(name, values)])
            return values

        return read_by_all

    def _command(self, message: _Message) -> None:
        messages = self._settled("save", message)
        self._check_words("save", messages, self._in_save)

    def _follow(self, reads: Mapping[str, Read]) -> None:
        names = list(reads)
        while True:
            with self.lock:
                messages = self._settled("save", _Message(_FOLLOWS))
                self._check_words("save", messages, self._in_save)
                if messages[0].word == _SAVED:
                    return
                at, *place = np.frombuffer(messages[0].body, np.int64).tolist()
                values = reads[names[at]](tuple(place))
                self.agree("save", [(names[at], values)])

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Return a context in which each process reads a checkpoint; all leave it well, or none."""
        with self._busy("restore"):
            try:
                self.agree("restore", ())
                yield
                with self.lock:
                    self.agree("restored", ())
                    assert self._rest is not None, "the process is busy"
                    self._rest.set()  # before the lock is free: no process answers any more
            except BaseException as error:
                self._fail("restore", error)
                raise
