"""The same work done by others: torch, FBGEMM, TensorFlow, Keras, JAX and NumPy.

Each takes part where it is installed; none is a dependency. `Own` is ourselves, in the way that a
case has to keep up with, and `Machine` is what the bytes of a work cost here, whatever is computed
with them.
"""

from __future__ import annotations

from shardcore_bench.peers.base import Peer
from shardcore_bench.peers.fbgemm_peer import Fbgemm
from shardcore_bench.peers.jax_peer import Jax
from shardcore_bench.peers.keras_peer import Keras
from shardcore_bench.peers.machine import Machine
from shardcore_bench.peers.numpy_peer import Numpy
from shardcore_bench.peers.own import Own
from shardcore_bench.peers.tensorflow_peer import TensorFlow
from shardcore_bench.peers.torch_peer import Torch

__all__ = ["PEERS", "Peer"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        *(Own(), Numpy(), Torch(), Fbgemm(), TensorFlow(), Keras(), Jax()),
        Machine(),
    )
}
