"""The manifest of a step: what it holds and where, under one checksum and a strict schema.

Nothing of a manifest is believed before its checksum matches, and nothing of it is used before
every field has the type and range it must have: a checksum proves that the bytes are whole, not
that an honest program wrote them.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardcore.checkpoint.boxes import Box, cover_problem
from shardcore.checkpoint.encoding import StoredType, named_type
from shardcore.checkpoint.safetensors import MAX_RANK, MAX_SIZE, FileSums
from shardcore.errors import CorruptCheckpointError

__all__ = [
    "FORMAT",
    "MANIFEST_NAME",
    "VERSION",
    "Manifest",
    "ObjectRecord",
    "StoredBox",
    "TensorRecord",
    "canonical",
]

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = "shardcore-checkpoint"
VERSION: Final = 1

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
_CRC: Final = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class StoredBox:
    """A box of a tensor and the tensor of a file that holds it."""

    file: str
    key: str
    box: Box


@dataclass(frozen=True)
class TensorRecord:
    """One logical tensor: its shape, dtype and the boxes that cover it exactly."""

    shape: tuple[int, ...]
    stored: StoredType
    boxes: tuple[StoredBox, ...]


@dataclass(frozen=True)
class ObjectRecord:
    """One named object: what it said about itself, and its tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorRecord]


def canonical(value: object) -> bytes:
    """Return the one JSON text of `value`: ASCII, sorted keys, no spaces.

    Examples
    --------
    >>> canonical({"b": [1, 2.5], "a": None})
    b'{"a":null,"b":[1,2.5]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Manifest:
    """The content of one step.

    Parameters
    ----------
    step : int
        The step's number.
    shardcore_version : str
        Version of the library that wrote it.
    objects : dict of str to ObjectRecord
    files : dict of str to FileSums
    """

    step: int
    shardcore_version: str
    objects: dict[str, ObjectRecord]
    files: dict[str, FileSums]

    def to_bytes(self) -> bytes:
        """Return the text of the manifest file."""
        body = self._body()
        return canonical({"body": body, "crc32": f"{zlib.crc32(canonical(body)):08x}"})

    def content(self) -> bytes:
        """Return a text that is equal for two saves of equal content, whatever wrote them."""
        body = self._body()
        del body["shardcore_version"]
        return canonical(body)

    def _body(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "shardcore_version": self.shardcore_version,
            "objects": {
                name: {
                    "metadata": record.metadata,
                    "tensors": {key: _tensor(t) for key, t in record.tensors.items()},
                }
                for name, record in self.objects.items()
            },
            "files": {
                name: {
                    "size": sums.size,
                    "header_crc32": f"{sums.header_crc32:08x}",
                    "checksums_crc32": f"{sums.checksums_crc32:08x}",
                }
                for name, sums in self.files.items()
            },
        }

    @classmethod
    def from_bytes(cls, text: bytes, label: str) -> Manifest:
        """Parse the text of a manifest file.

        Raises
        ------
        CorruptCheckpointError
            If it is damaged, breaks the schema, or comes from a newer version.
        """
        return _Schema(label).manifest(text)


def _tensor(record: TensorRecord) -> dict[str, Any]:
    return {
        "kind": "dense",
        "shape": list(record.shape),
        "dtype": record.stored.name,
        "boxes": [
            {
                "file": stored.file,
                "key": stored.key,
                "offset": list(stored.box.offset),
                "shape": list(stored.box.shape),
            }
            for stored in record.boxes
        ],
    }


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _shown(value: object) -> str:
    if isinstance(value, dict | list):  # its repr may be as deep and as large as a forger likes
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return f"{value!r:.80}"


class _Schema:
    """Checks a manifest field by field; `where` names the field in messages."""

    def __init__(self, label: str) -> None:
        self._label = label

    def manifest(self, text: bytes) -> Manifest:
        try:
            document = json.loads(text, object_pairs_hook=_no_duplicates)
            document_body = document["body"] if isinstance(document, dict) else None
            crc = f"{zlib.crc32(canonical(document_body)):08x}"
        except KeyError as error:
            raise self._error("manifest", "must have the field 'body'") from error
        except (ValueError, RecursionError) as error:
            raise self._error("manifest", f"is no JSON: {error}") from error
        outer = self._object(document, "manifest", ("body", "crc32"))
        if self._text(outer["crc32"], "crc32") != crc:
            raise self._error("crc32", f"is {outer['crc32']!r:.80}, the content has {crc!r}")
        body = outer["body"]
        if not isinstance(body, dict):
            raise self._error("body", f"must be an object, got {_shown(body)}")
        if body.get("format") != FORMAT:
            raise self._error("format", f"must be {FORMAT!r}, got {_shown(body.get('format'))}")
        # The version comes before the other fields: a newer one may have others.
        version = self._natural(body.get("version"), "version")
        if version < 1:
            raise self._error("version", f"is {version}, the first version is 1")
        if version > VERSION:
            raise self._error(
                "version",
                f"is {version}, this version of shardcore reads up to {VERSION}: update shardcore",
            )
        fields = ("format", "version", "step", "shardcore_version", "objects", "files")
        body = self._object(body, "body", fields)
        files = {
            name: self._file(name, value)
            for name, value in self._mapping(body["files"], "files").items()
        }
        objects = {
            name: self._record(value, f"objects[{name!r}]", files)
            for name, value in self._mapping(body["objects"], "objects").items()
        }
        self._check_uses(objects, files)
        return Manifest(
            self._natural(body["step"], "step"),
            self._text(body["shardcore_version"], "shardcore_version"),
            objects,
            files,
        )

    def _file(self, name: str, value: object) -> FileSums:
        where = f"files[{name!r:.80}]"
        if not _FILE_NAME.fullmatch(name):
            raise self._error(where, "must be a plain file name that ends in .safetensors")
        fields = self._object(value, where, ("size", "header_crc32", "checksums_crc32"))
        return FileSums(
            self._natural(fields["size"], f"{where}.size"),
            self._crc(fields["header_crc32"], f"{where}.header_crc32"),
            self._crc(fields["checksums_crc32"], f"{where}.checksums_crc32"),
        )

    def _record(self, value: object, where: str, files: Mapping[str, FileSums]) -> ObjectRecord:
        fields = self._object(value, where, ("metadata", "tensors"))
        tensors = self._mapping(fields["tensors"], f"{where}.tensors")
        return ObjectRecord(
            self._mapping(fields["metadata"], f"{where}.metadata"),
            {
                name: self._dense(tensor, f"{where}.tensors[{name!r}]", files)
                for name, tensor in tensors.items()
            },
        )

    def _dense(self, value: object, where: str, files: Mapping[str, FileSums]) -> TensorRecord:
        if isinstance(value, dict) and value.get("kind") == "delta":
            raise self._error(
                f"{where}.kind", "is 'delta', which is not supported by this version of shardcore"
            )
        fields = self._object(value, where, ("kind", "shape", "dtype", "boxes"))
        if fields["kind"] != "dense":
            raise self._error(f"{where}.kind", f"must be 'dense', got {_shown(fields['kind'])}")
        shape = self._naturals(fields["shape"], f"{where}.shape")
        stored = named_type(self._text(fields["dtype"], f"{where}.dtype"))
        if stored is None:
            raise self._error(f"{where}.dtype", f"is unknown: {fields['dtype']!r:.80}")
        # NumPy multiplies the sizes that are not zero; strings are counted by their offsets.
        num_bytes = math.prod(size for size in shape if size) * (stored.itemsize or 8)
        if num_bytes > MAX_SIZE:
            raise self._error(f"{where}.shape", f"is too large: {list(shape)} of {stored.name}")
        boxes = fields["boxes"]
        if not isinstance(boxes, list):
            raise self._error(f"{where}.boxes", f"must be a list, got {_shown(boxes)}")
        found = [
            self._box(box, f"{where}.boxes[{index}]", files) for index, box in enumerate(boxes)
        ]
        problem = cover_problem(shape, [stored_box.box for stored_box in found])
        if problem is not None:
            raise self._error(where, problem)
        return TensorRecord(shape, stored, tuple(found))

    def _box(self, value: object, where: str, files: Mapping[str, FileSums]) -> StoredBox:
        fields = self._object(value, where, ("file", "key", "offset", "shape"))
        file = self._text(fields["file"], f"{where}.file")
        if file not in files:
            raise self._error(f"{where}.file", f"is not one of files: {file!r:.80}")
        return StoredBox(
            file,
            self._text(fields["key"], f"{where}.key"),
            Box(
                self._naturals(fields["offset"], f"{where}.offset"),
                self._naturals(fields["shape"], f"{where}.shape"),
            ),
        )

    def _check_uses(
        self, objects: Mapping[str, ObjectRecord], files: Mapping[str, FileSums]
    ) -> None:
        used: set[tuple[str, str]] = set()
        for name, record in objects.items():
            for tensor_name, tensor in record.tensors.items():
                for index, stored in enumerate(tensor.boxes):
                    if (stored.file, stored.key) in used:
                        raise self._error(
                            f"objects[{name!r}].tensors[{tensor_name!r}].boxes[{index}].key",
                            f"is used twice: {stored.key!r:.80} of {stored.file}",
                        )
                    used.add((stored.file, stored.key))
        unused = sorted(set(files) - {file for file, _ in used})
        if unused:
            raise self._error(f"files[{unused[0]!r}]", "holds no box of any tensor")

    def _object(self, value: object, where: str, fields: Sequence[str]) -> dict[str, Any]:
        found = self._mapping(value, where)
        missing = [field for field in fields if field not in found]
        unknown = sorted(set(found) - set(fields))
        if missing:
            raise self._error(where, f"must have the field {missing[0]!r}")
        if unknown:
            raise self._error(where, f"has the unknown field {unknown[0]!r:.80}")
        return found

    def _mapping(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(where, f"must be an object, got {_shown(value)}")
        return value

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise self._error(where, f"must be a string, got {_shown(value)}")
        return value

    def _crc(self, value: object, where: str) -> int:
        text = self._text(value, where)
        if not _CRC.fullmatch(text):
            raise self._error(where, f"must be 8 hexadecimal digits, got {text!r:.80}")
        return int(text, 16)

    def _natural(self, value: object, where: str) -> int:
        if type(value) is not int or not 0 <= value <= MAX_SIZE:
            raise self._error(where, f"must be an integer in [0, 2**63), got {_shown(value)}")
        return value

    def _naturals(self, value: object, where: str) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) > MAX_RANK:
            raise self._error(where, f"must be a list of at most {MAX_RANK}, got {_shown(value)}")
        return tuple(self._natural(item, f"{where}[{axis}]") for axis, item in enumerate(value))

    def _error(self, where: str, problem: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self._label}: {where} {problem}")
