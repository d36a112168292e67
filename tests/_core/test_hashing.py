"""The hashing kernels: equal to their twins, to published vectors, and safe with wild offsets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore.ids import digests

LARGEST = 2**63 - 1
KINDS = st.sampled_from(digests.KINDS)
SEEDS = st.integers(0, 2**64 - 1) | st.just(0)
BUCKETS = st.integers(1, LARGEST) | st.integers(1, 1000) | st.sampled_from([1, 2**62, LARGEST])
# Lengths on both sides of every border in the two hashes, and of what a view can hold.
BORDERS = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    9,
    11,
    12,
    13,
    15,
    16,
    17,
    24,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
BYTES = st.binary(max_size=150) | st.sampled_from(BORDERS).flatmap(
    lambda size: st.binary(min_size=size, max_size=size)
)


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def assert_same(ours: tuple[Any, int], theirs: tuple[Any, int]) -> None:
    (rows, bad), (expected, expected_bad) = ours, theirs
    assert bad == expected_bad
    if bad < 0:
        np.testing.assert_array_equal(rows, expected, strict=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXT | BYTES, max_size=8), KINDS, SEEDS, BUCKETS)
@example(["", b"", "\0", "é", "ÿ" * 20, "\u0800", "\ud7ff\ue000\uffff", "\U00010000", "\U0010ffff"],
         "xxh64", 0, LARGEST)  # fmt: skip
@example(["a"] * 40, "farmhash64", 0, 1)  # beyond what is asked for ahead
def test_words_equal_the_twin(words: list[Any], kind: Any, seed: int, buckets: int) -> None:
    seed = 0 if kind == "farmhash64" else seed
    assert_same(
        digests.hash_words(words, kind, seed, buckets),
        reference.hash_words(words, kind, seed, buckets),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXT | BYTES | st.sampled_from(["\udc00", "a\ud800é", None, 3, 0.5, ["a"]])))
def test_bad_words_are_those_of_the_twin(words: list[Any]) -> None:
    assert_same(
        digests.hash_words(words, "xxh64", 0, 10), reference.hash_words(words, "xxh64", 0, 10)
    )


@pytest.mark.parametrize("kind", digests.KINDS)
def test_every_length_equals_the_twin(kind: Any) -> None:
    rng = np.random.default_rng(5)
    words = [rng.bytes(size) for size in (*range(400), 1023, 1024, 1025, 4097)]
    assert_same(
        digests.hash_words(words, kind, 0, LARGEST), reference.hash_words(words, kind, 0, LARGEST)
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(max_size=9) | st.text("a\0é\ud800\U0001f600", max_size=9), max_size=6),
    st.sampled_from(["U", "S", ">U", "U12", "S3"]),
    KINDS,
    st.data(),
)
def test_arrays_of_one_width_equal_the_twin(
    words: list[str], dtype: str, kind: Any, data: Any
) -> None:
    if "S" in dtype:
        array = np.array([word.encode("utf-8", "replace") for word in words], dtype)
    else:
        array = np.array(words, dtype)
    if words and "U" in dtype and data.draw(st.booleans()):
        beyond = st.sampled_from([0, 0xD800, 0x10FFFF, 0x110000, 2**32 - 1])
        points = array.view(array.dtype.byteorder.replace("=", "<") + "u4")
        points[data.draw(st.integers(0, points.size - 1))] = data.draw(beyond)
    for given_array in (frozen(array), array[::2], array[:, None]):
        assert_same(
            digests.hash_fixed(given_array, kind, 0, LARGEST),
            reference.hash_fixed(given_array, kind, 0, LARGEST),
        )


@pytest.mark.parametrize("point", [0xD800, 0xDFFF, 0x110000, 2**32 - 1])
def test_what_is_no_character_is_found_in_an_array(point: int) -> None:
    array = np.array([65, 0x10FFFF, point, 66], np.uint32).view("U2")
    for module in (digests, reference):
        assert module.hash_fixed(array, "xxh64", 0, 10)[1] == 1


OFFSETS = st.lists(st.integers(0, 200), min_size=1, max_size=8).map(sorted)
ANY_OFFSETS = st.lists(
    st.integers(-3, 210) | st.sampled_from([-(2**31), 2**31 - 1]), min_size=1, max_size=6
)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@settings(max_examples=150, deadline=None)
@given(OFFSETS | ANY_OFFSETS, st.binary(min_size=200, max_size=200) | st.just(b""), KINDS, BUCKETS)
def test_spans_equal_the_twin(
    dtype: Any, offsets: list[int], data: bytes, kind: Any, buckets: int
) -> None:
    text = np.frombuffer(data, np.uint8)  # read-only
    given_offsets = frozen(np.array(offsets, dtype))
    assert_same(
        digests.hash_spans(text, given_offsets, kind, 0, buckets),
        reference.hash_spans(text, given_offsets, kind, 0, buckets),
    )


def test_spans_beyond_one_block_are_checked_where_they_are() -> None:
    text = np.frombuffer(b"abc" * 1000, np.uint8)
    offsets = np.arange(0, 3001, 3)
    assert_same(
        digests.hash_spans(text, offsets, "xxh64", 7, LARGEST),
        reference.hash_spans(text, offsets, "xxh64", 7, LARGEST),
    )
    for at in (0, 1, 255, 256, 257, 511, 512, 999, 1000):
        for value in (-1, 3001, 2**62):
            wrong = offsets.copy()
            wrong[at] = value
            expected = reference.hash_spans(text, wrong, "xxh64", 7, 10)[1]
            assert digests.hash_spans(text, wrong, "xxh64", 7, 10)[1] == expected >= 0


def views_of(words: list[bytes], buffer: int = 0) -> tuple[Any, Any]:
    """Return the views of words and the one buffer that holds those that are long."""
    held, views = bytearray(b"before"), []
    for word in words:
        if len(word) <= 12:
            views.append(
                np.frombuffer(len(word).to_bytes(4, "little") + word.ljust(12, b"\0"), "<i4")
            )
        else:
            prefix = int.from_bytes(word[:4], "little", signed=True)
            views.append(np.array([len(word), prefix, buffer, len(held)], "<i4"))
            held += word
    flat = np.concatenate(views) if views else np.empty(0, "<i4")
    return flat, np.frombuffer(bytes(held), np.uint8)


@settings(max_examples=150, deadline=None)
@given(st.lists(BYTES, max_size=6), KINDS, BUCKETS, st.data())
def test_views_equal_the_twin(words: list[bytes], kind: Any, buckets: int, data: Any) -> None:
    views, held = views_of(words, buffer=1)
    buffers = [np.empty(0, np.uint8), held]
    rows, bad = digests.hash_views(frozen(views.view(np.uint8)), buffers, kind, 0, buckets)
    np.testing.assert_array_equal(rows, reference.hash_words(words, kind, 0, buckets)[0])
    assert bad == -1
    if words:
        wild = st.sampled_from([-1, -(2**31), 2**31 - 1, 0, 1, 2, 12, 13, held.size])
        changed = views.copy()
        changed[data.draw(st.integers(0, changed.size - 1))] = data.draw(wild)
        assert_same(
            digests.hash_views(changed.view(np.uint8), buffers, kind, 0, buckets),
            reference.hash_views(changed.view(np.uint8), buffers, kind, 0, buckets),
        )


def test_views_may_end_where_their_buffer_does_and_no_later() -> None:
    words = [b"0123456789abcdef"]
    views, held = views_of(words)
    assert digests.hash_views(views.view(np.uint8), [held], "xxh64", 0, 10)[1] == -1
    assert digests.hash_views(views.view(np.uint8), [held[:-1]], "xxh64", 0, 10)[1] == 0
    assert digests.hash_views(views.view(np.uint8), [], "xxh64", 0, 10)[1] == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8),
    st.sampled_from(["int8", "uint8", ">i4", "uint32", "int64", "uint64"]),
    SEEDS,
    BUCKETS,
)
def test_integers_equal_the_twin(ids: list[int], dtype: str, seed: int, buckets: int) -> None:
    array = frozen(np.array(ids, np.int64).astype(dtype))
    for given_ids in (array, array[::2], array[:, None]):
        np.testing.assert_array_equal(
            digests.hash_integers(given_ids, seed, buckets),
            reference.hash_integers(given_ids, seed, buckets),
            strict=True,
        )


def test_a_remainder_is_exact_next_to_every_multiple() -> None:
    """Words are looked for whose hashes are near multiples, by going the way back from a hash."""

    def word_of(hashed: int) -> int:
        def unfolded(z: int, shift: int) -> int:
            x = z
            for _ in range(64 // shift + 1):
                x = z ^ x >> shift
            return x

        z = unfolded(hashed, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
        z = unfolded(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
        return (unfolded(z, 30) - 0x9E3779B97F4A7C15) % 2**64

    for buckets in (1, 2, 3, 10, 2**31 - 1, 2**32 + 1, 2**62, 2**62 + 1, LARGEST - 1, LARGEST):
        last = 2**64 // buckets
        multiples = {0, 1, 2, last // 2, last - 1, last}
        wanted = [
            (multiple * buckets + delta) % 2**64
            for multiple, delta in itertools.product(multiples, (-1, 0, 1))
        ]
        words = np.array([word_of(hashed) for hashed in wanted], np.uint64)
        rows = digests.hash_integers(words, 0, buckets)
        assert rows.tolist() == [hashed % buckets for hashed in wanted]


# --- what others have published ------------------------------------------------------------------

PRIME32, PRIME64 = 2654435761, 11400714785074694797


def sanity_buffer(size: int) -> bytes:
    """Return the bytes that xxHash's own tests are over."""
    state, made = PRIME32, bytearray()
    for _ in range(size):
        made.append(state >> 56)
        state = state * PRIME64 % 2**64
    return bytes(made)


@pytest.mark.parametrize(
    ("size", "seed", "expected"),
    [
        (0, 0, 0xEF46DB3751D8E999),
        (0, PRIME32, 0xAC75FDA2929B17EF),
        (1, 0, 0xE934A84ADB052768),
        (1, PRIME32, 0x5014607643A9B4C3),
        (4, 0, 0x9136A0DCA57457EE),
        (14, 0, 0x8282DCC4994E35C8),
        (14, PRIME32, 0xC3BD6BF63DEB6DF0),
        (222, 0, 0xB641AE8CB691C174),
        (222, PRIME32, 0x20CB8AB7AE10C14A),
    ],
)
def test_xxh64_is_as_its_own_tests_have_it(size: int, seed: int, expected: int) -> None:
    for hashed in (digests.hash_words, reference.hash_words):
        for buckets in (LARGEST, 2**62):
            rows, _ = hashed([sanity_buffer(size)], "xxh64", seed, buckets)
            assert rows.tolist() == [expected % buckets]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        # TensorFlow's fingerprint_test.cc
        ("Hello", 15404698994557526151),
        ("World", 18308117990299812472),
        # the documentation of BigQuery's FARM_FINGERPRINT, which is signed
        ("1footrue", -1541654101129638711),
        ("2applefalse", 2794438866806483259),
        ("3true", -4880158226897771312),
    ],
)
def test_farmhash64_is_as_others_have_it(word: str, expected: int) -> None:
    for hashed in (digests.hash_words, reference.hash_words):
        rows, _ = hashed([word], "farmhash64", 0, LARGEST)
        assert rows.tolist() == [expected % 2**64 % LARGEST]


def test_farmhash64_gives_the_buckets_of_tensorflows_documentation() -> None:
    rows, _ = digests.hash_words(["Hello", "TensorFlow", "2.x"], "farmhash64", 0, 3)
    assert rows.tolist() == [0, 2, 2]
