"""What the tests of checkpoints share: an object on several hosts, and the bytes of a manifest."""

from __future__ import annotations

import json
import zlib
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from shardcore.checkpoint.boxes import Box
from shardcore.checkpoint.state import RestorePlan, TensorSource
from shardcore.errors import ShardcoreValueError


class HostedTable:
    """A table and a slot in row ranges on hosts; `columns` splits every range in two."""

    def __init__(self, rows, bounds, live=True, columns=False, slot=None):
        self.tensors = {"users": rows}
        if slot is not None:
            self.tensors["users/accumulator"] = slot
        self.bounds = bounds
        self.live = live
        self.columns = columns
        self.metadata = {"optimizer": "adagrad", "lr": 0.5}
        self.log = []
        self.skipped = ()

    def checkpoint_metadata(self):
        return self.metadata

    def checkpoint_tensors(self):
        return [
            TensorSource(
                name, values.shape, values.dtype, self._boxes(values), partial(self._read, values),
                group="users",
            )
            for name, values in self.tensors.items()
        ]  # fmt: skip

    def _boxes(self, values):
        boxes = []
        for host, (start, stop) in enumerate(pairwise(self.bounds)):
            width = values.shape[1]
            cuts = [0, width // 2, width] if self.columns else [0, width]
            for left, right in pairwise(cuts):
                boxes.append((host, Box((start, left), (stop - start, right - left))))
        return tuple(boxes)

    @staticmethod
    def _read(values, box):
        return values[tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))]

    def checkpoint_restore(self, metadata, tensors, *, slots):
        self.log.append(("plan", metadata, slots))
        if metadata != self.metadata:
            raise ShardcoreValueError("another optimizer")
        wanted = [name for name in self.tensors if slots == "load" or name == "users"]
        return RestorePlan(
            {name: partial(self._write, name) for name in wanted},
            live=self.live,
            commit=partial(self.log.append, "commit"),
            abort=partial(self.log.append, "abort"),
            skipped=self.skipped,
        )

    def _write(self, name, box, values):
        self.log.append("write")
        assert box.offset[1:] == (0,) * len(box.offset[1:])
        assert values.shape == box.shape
        self.tensors[name][box.rows.start : box.rows.stop] = values


@pytest.fixture(scope="session")
def hosted_table():
    return HostedTable


def _forge(path, change):
    """Change the body of a manifest and give it a checksum that matches."""
    file = path / "manifest.json"
    body = json.loads(file.read_text())["body"]
    changed = change(body)
    body = body if changed is None else changed
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    file.write_text(f'{{"body":{text},"crc32":"{zlib.crc32(text.encode()):08x}"}}')


@pytest.fixture(scope="session")
def forge():
    return _forge


@pytest.fixture
def rows():
    return np.arange(24, dtype=np.float32).reshape(8, 3)
