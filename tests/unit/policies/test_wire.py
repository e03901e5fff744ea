"""What comes over the wire is read safely, and as openpi's own packer reads and writes it."""

from __future__ import annotations

import contextlib
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from openpi_client import msgpack_numpy

from polyarm.errors import MissingExtra, WireError
from polyarm.policies import wire

DTYPES = st.one_of(
    nps.boolean_dtypes(),
    nps.integer_dtypes(endianness="?"),
    nps.unsigned_integer_dtypes(endianness="?"),
    nps.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    nps.byte_string_dtypes(min_len=1),
    nps.unicode_string_dtypes(endianness="?", min_len=1),
    nps.datetime64_dtypes(endianness="?"),
    nps.timedelta64_dtypes(endianness="?"),
)
ARRAYS = nps.arrays(DTYPES, nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
SCALARS = (
    nps.arrays(DTYPES.filter(lambda dtype: dtype.kind not in "mM"), (1,))
    .map(lambda array: array[0])
    .filter(
        lambda value: not (isinstance(value, str) and any("\ud800" <= c < "\ue000" for c in value))
    )
)
LEAVES = st.one_of(
    ARRAYS,
    SCALARS,
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(),
    st.binary(),
)
MESSAGES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FEW = settings(max_examples=150, deadline=None)


def assert_same(one, other):
    if isinstance(one, np.float64 | np.bytes_ | np.str_):
        one = one.item()  # to msgpack they are a float, bytes and text, as they are to openpi
    assert type(one) is type(other) or isinstance(one, list | tuple)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, np.ndarray | np.generic):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    else:
        assert one == other or (one != one and other != other)


@given(MESSAGES)
@FEW
def test_every_message_comes_back_as_it_was(message):
    assert_same(message, wire.unpack(wire.pack(message)))


@given(MESSAGES)
@FEW
def test_openpis_client_reads_what_we_write_and_writes_what_we_read(message):
    theirs = msgpack_numpy.packb(message)
    assert wire.pack(message) == theirs
    assert_same(msgpack_numpy.unpackb(theirs), wire.unpack(theirs))


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_are_a_message_or_refused(data):
    with contextlib.suppress(WireError):
        wire.unpack(data)


DAMAGED = st.fixed_dictionaries(
    {},
    optional={
        b"__ndarray__": st.just(True),
        b"__npgeneric__": st.just(True),
        b"data": st.binary(max_size=40) | st.integers() | st.text(max_size=4) | st.none(),
        b"dtype": st.sampled_from(["<f4", "|O", "|V8", "<c8", "<M8", "<f16", "i4,f8", "|S9", "O"])
        | st.text(max_size=8)
        | st.integers(0, 9),
        b"shape": st.lists(st.integers(-3, 2**64 - 1) | st.text(max_size=2), max_size=40)
        | st.integers(0, 9),
    },
)


@given(DAMAGED)
@settings(max_examples=500, deadline=None)
def test_arrays_that_are_none_are_refused(found):
    try:
        data = msgpack.packb(found)
    except OverflowError:
        return
    try:
        message = wire.unpack(data)
    except WireError:
        return
    if isinstance(message, np.ndarray):
        assert message.dtype.kind not in "OVc"
        assert message.nbytes <= len(data)
        assert_same(message, wire.unpack(wire.pack(message)))


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four billion
        b"\xdf\xff\xff\xff\xff",  # a map of as many
        b"\xc6\xff\xff\xff\xff",  # as many bytes
        b"\xdb\xff\xff\xff\xff",  # letters
        b"\xc9\xff\xff\xff\xff\x01",  # an extension
        b"\xdc\x0f\xff" * 3000,  # lists in lists in lists, each of 4095
        b"\x91" * 100_000,
        msgpack.packb({b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": [2**40]}),
        msgpack.packb({b"__ndarray__": True, b"data": b"", b"dtype": "|S999999999", b"shape": [9]}),
        msgpack.packb({b"__ndarray__": True, b"data": b"", b"dtype": "|u1", b"shape": [2**62, 0]}),
        msgpack.packb({b"__npgeneric__": True, b"data": 10**9, b"dtype": "|S1"}),
        msgpack.packb(msgpack.Timestamp(0)),
        msgpack.packb([1]) + b"\0",
        b"",
    ],
)
def test_what_claims_to_be_large_allocates_next_to_nothing(data):
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            wire.unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.zeros(2, "f4,i4"),
        np.zeros(2, np.complex64),
        np.complex64(1),
        np.longdouble(1),
        np.datetime64("2024-01-01"),
        object(),
        {1, 2},
        2**70,
    ],
)
def test_what_openpi_does_not_send_is_refused(value):
    with pytest.raises(WireError, match="cannot be sent"):
        wire.pack({"value": value})


def test_a_message_beyond_the_limit_is_refused_unread():
    with pytest.raises(WireError, match="of 11 bytes; the limit is 10"):
        wire.unpack(b"\xc1" * 11, max_nbytes=10)


def test_arrays_are_sent_as_they_are_laid_out_for_people():
    frame = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    for view in (frame[::-1, ::-1], frame.T, np.asfortranarray(frame), frame[:0]):
        assert_same(np.ascontiguousarray(view), wire.unpack(wire.pack(view)))


def test_without_the_libraries_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "msgpack", None)
    with pytest.raises(MissingExtra, match=r"needs msgpack: pip install 'polyarm\[serve\]'"):
        wire.pack({})
