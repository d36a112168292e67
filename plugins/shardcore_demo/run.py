"""The demo from beginning to end, and what it prints."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import shardcore as sc
from shardcore.errors import ShardcoreOSError, ShardcoreRuntimeError, ShardcoreValueError
from shardcore_demo.corpus import Corpus, read_corpus, standard_library
from shardcore_demo.features import hashed_bags
from shardcore_demo.model import Model
from shardcore_demo.modules import map_of, module_vectors, nearest
from shardcore_demo.options import DemoOptions
from shardcore_demo.picture import draw
from shardcore_demo.training import Examples, History, train

__all__ = ["run_demo"]

_HELD_OUT: Final = 0.1
_SHOWN_MODULES: Final = 6
_SHOWN_NEIGHBOURS: Final = 4
_PICTURE: Final = "modules.png"


def run_demo(options: DemoOptions) -> None:
    """Learn, save, restore on other hosts, compare, and show what was learned.

    Raises
    ------
    ShardcoreError
        If an option does not fit, storage fails, the restored model differs from the saved one, or
        the short job learned too little.
    KeyboardInterrupt
        Saying which checkpoint there is, where there is one.
    """
    # An unknown or unavailable backend is an error now, not after the corpus was read.
    sc.get_backend(options.backend, **options.backend_options(options.hosts)).close()
    root = _checkpoint_root(options)
    try:
        _run(options, root)
    except KeyboardInterrupt:
        saved = sc.checkpoint.steps(root)  # read from the disk, whatever was being done
        if not saved:
            raise
        raise KeyboardInterrupt(
            f"the checkpoint of step {saved[-1]} is {sc.checkpoint.latest(root)}"
        ) from None


def _run(options: DemoOptions, root: Path) -> None:
    start = time.perf_counter()
    corpus, examples = _examples(options)
    training, held_out = examples.split(_HELD_OUT, options.seed)
    classes = len(corpus.modules)
    with Model(options, classes, options.hosts, options.seed) as model:
        history = train(model, training, held_out, options, root, _say)
        if options.short:
            _check_learned(corpus, history)
        logits = model.logits(held_out.bags)
        vectors = module_vectors(model.activations(examples.bags), examples.labels)
        exchanged = model.metrics()["bytes_exchanged"]
    _say(f"checkpoint: {history.checkpoint}")
    _check_restored(options, root, held_out, logits)
    _say_neighbours(corpus, vectors)
    _say(f"bytes exchanged between hosts: {exchanged:,}")
    picture = options.output_dir / _PICTURE
    draw(picture, corpus.modules, np.bincount(corpus.labels), map_of(vectors), history)
    _say(f"picture: {picture}")
    _say(f"finished in {time.perf_counter() - start:.1f} seconds")


def _say(line: str) -> None:
    tqdm.write(line)  # above the progress bar, where there is one
    sys.stdout.flush()


def _checkpoint_root(options: DemoOptions) -> Path:
    """Return a directory for the checkpoints that holds none yet."""
    if options.checkpoint_dir is not None:
        saved = sc.checkpoint.steps(options.checkpoint_dir)
        if saved:
            raise ShardcoreValueError(
                f"--checkpoint-dir must hold no steps yet, got {options.checkpoint_dir} with "
                f"step {saved[-1]}"
            )
    try:
        options.output_dir.mkdir(parents=True, exist_ok=True)
        if options.checkpoint_dir is not None:
            options.checkpoint_dir.mkdir(parents=True, exist_ok=True)
            return options.checkpoint_dir
        number = 1
        while True:
            fresh = options.output_dir / f"checkpoints-{number}"
            try:
                fresh.mkdir()
            except FileExistsError:
                number += 1
            else:
                return fresh
    except OSError as error:
        raise ShardcoreOSError(f"output directory cannot be made: {error}") from error


def _examples(options: DemoOptions) -> tuple[Corpus, Examples]:
    source = options.source or standard_library()
    _say(f"reading the functions of {source}")
    corpus = read_corpus(source, options.min_functions, options.max_functions)
    if corpus.unreadable:
        _say(f"{corpus.unreadable:,} files left out: no Python of this version")
    bags = hashed_bags(corpus.texts, options.buckets)
    functions, ids = len(corpus.texts), bags[0].size
    _say(
        f"{functions:,} functions from {len(corpus.modules)} modules, the largest is "
        f"{corpus.largest_module} with a share of {corpus.largest_share:.3f}"
    )
    hosts = "" if options.hosts is None else f" on {options.hosts} hosts"
    _say(
        f"{ids:,} ids, {ids / functions:.0f} per function; table of {options.buckets:,} x "
        f"{options.dim}, backend {options.backend}{hosts}"
    )
    return corpus, Examples(bags, corpus.labels)


def _check_learned(corpus: Corpus, history: History) -> None:
    accuracy, wanted = history.accuracies[-1], min(0.95, 2 * corpus.largest_share)
    if accuracy < wanted:
        raise ShardcoreRuntimeError(
            f"the short job must reach a held-out accuracy of {wanted:.3f}, twice the share of the "
            f"largest module, got {accuracy:.3f}"
        )


def _check_restored(
    options: DemoOptions, root: Path, held_out: Examples, expected: NDArray[np.float32]
) -> None:
    """Restore into a fresh engine and compare, bit for bit."""
    classes = expected.shape[1]
    # Another seed: whatever the checkpoint did not bring would show.
    with Model(options, classes, options.restore_hosts, options.seed ^ 1) as model:
        step = model.restore(root)
        logits = model.logits(held_out.bags)
    different = int(np.count_nonzero(logits.view(np.uint32) != expected.view(np.uint32)))
    wrong = int(np.count_nonzero(logits.argmax(axis=1) != expected.argmax(axis=1)))
    hosts = "" if options.restore_hosts is None else f" on {options.restore_hosts} hosts"
    if different:
        raise ShardcoreRuntimeError(
            f"step {step} restored{hosts} must predict as it did when it was saved, got "
            f"{wrong:,} of {logits.shape[0]:,} predictions and {different:,} of {logits.size:,} "
            "logits that differ"
        )
    _say(
        f"step {step} restored into a fresh engine{hosts}: all {logits.shape[0]:,} predictions and "
        f"all {logits.size:,} logits are identical"
    )


def _say_neighbours(corpus: Corpus, vectors: NDArray[np.float64]) -> None:
    _say("nearest modules (cosine of the mean activations)")
    largest = np.argsort(-np.bincount(corpus.labels), kind="stable")[:_SHOWN_MODULES]
    for module in largest.tolist():
        found = nearest(vectors, module, _SHOWN_NEIGHBOURS)
        shown = ", ".join(f"{corpus.modules[other]} {cosine:.2f}" for other, cosine in found)
        _say(f"  {corpus.modules[module]}: {shown}")
