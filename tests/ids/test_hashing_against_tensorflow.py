"""Hash(kind="farmhash64") against TensorFlow itself, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

import shardcore as sc

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def test_buckets_are_those_of_tensorflow():
    rng = np.random.default_rng(0)
    sizes = [*range(301), *rng.integers(0, 301, 3000), *range(1000, 1100), 5000, 2**16 + 1]
    words = [rng.bytes(int(size)) for size in sizes]
    # Of a list TensorFlow makes an array of NumPy's bytes, which lose the zeros at their end.
    tensor = tf.constant(np.array(words, object))
    for buckets in (1, 2, 1000, 2**31, 2**40 + 3, 2**63 - 1):
        theirs = tf.strings.to_hash_bucket_fast(tensor, buckets).numpy()
        function = sc.Hash(buckets, kind="farmhash64")
        np.testing.assert_array_equal(function(words), theirs, strict=True)
        np.testing.assert_array_equal(function(tensor.numpy()), theirs)


def test_text_and_integers_as_text():
    words = ["", "Hello", "TensorFlow", "2.x", "naïve", "日本語", "🙂" * 40]
    function = sc.Hash(1000, kind="farmhash64")
    theirs = tf.strings.to_hash_bucket_fast(words, 1000).numpy()
    np.testing.assert_array_equal(function(words), theirs)
    ids = [0, -1, 7, 2**40]
    theirs = tf.strings.to_hash_bucket_fast(tf.strings.as_string(ids), 1000).numpy()
    np.testing.assert_array_equal(function([str(number) for number in ids]), theirs)
