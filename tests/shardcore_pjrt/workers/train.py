"""One process of a training run: ``train.py CHECKPOINTS STEPS PROCESS PROCESSES PORT``."""

import os
import sys
import traceback

import jax
import numpy as np

import shardcore as sc

EVERY = 5
"""Steps between two checkpoints."""


def batch(step):
    """Return the whole batch of a step: the same in every process, and again after a restart."""
    rng = np.random.default_rng(step)
    return {"clicks": rng.integers(0, 1_000, (64, 4))}, rng.random((64, 16), np.float32)


@jax.jit
def gradient(activations, wanted):
    return activations - wanted


def main(root, steps, process, processes, port):
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        int(processes),
        int(process),
        initialization_timeout=60,
        heartbeat_timeout_seconds=30,
        shutdown_timeout_seconds=30,
    )
    items = sc.TableConfig(1_000, 16, name="items")
    engine = sc.ShardedEmbedding(
        {"clicks": sc.FeatureConfig(items)}, sc.optimizers.Adagrad(0.1), backend="pjrt"
    )
    checkpoint = sc.Checkpoint(embedding=engine)
    if sc.checkpoint.steps(root):
        checkpoint.restore(root)
    while engine.step < int(steps):
        features, wanted = batch(engine.step)
        engine.enqueue(features)
        activations = engine.dequeue()
        engine.apply_gradients({"clicks": gradient(activations["clicks"], wanted)})
        if engine.step % EVERY == 0:
            checkpoint.save(root, engine.step)
    engine.close()
    jax.distributed.shutdown()  # waits for the others


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # an ordinary exit would wait for the others, which may be dead
