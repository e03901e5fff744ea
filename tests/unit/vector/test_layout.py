from __future__ import annotations

import mmap

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm.errors import UnsupportedSpace
from polyarm.vector.layout import BlockLayout, leaves, nest, pick, segment, without_frames

DTYPES = [np.bool_, np.uint8, np.int8, np.uint16, np.int32, np.int64]
DTYPES += [np.float16, np.float32, np.float64]
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
KEYS = st.text("abxyz/._", min_size=1, max_size=6)

BOXES = st.builds(
    lambda shape, dtype: spaces.Box(0, 1 if dtype is np.bool_ else 100, shape, dtype),
    SHAPES,
    st.sampled_from(DTYPES),
)
DISCRETES = st.builds(
    lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)
)
FULL_SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
MULTI_DISCRETES = st.builds(
    lambda shape, most, start: spaces.MultiDiscrete(
        np.full(shape, most), start=np.full(shape, start)
    ),
    FULL_SHAPES,
    st.integers(1, 5),
    st.integers(-3, 3),
)
MULTI_BINARIES = st.one_of(st.integers(1, 6), FULL_SHAPES.map(list)).map(spaces.MultiBinary)
LEAVES = st.one_of(BOXES, DISCRETES, MULTI_DISCRETES, MULTI_BINARIES)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3).map(spaces.Dict),
    max_leaves=6,
)


def layout_of(observation, action, *, num_envs=3, rows=2, every=False):
    return BlockLayout(
        num_envs,
        rows,
        every,
        tuple(leaves(observation, "observation")),
        tuple(leaves(action, "action")),
    )


def segments_of(layout):
    return [layout.row_segment(), layout.chunk_segment(1), layout.chunk_segment(4)]


@settings(max_examples=60, deadline=None)
@given(SPACES, SPACES, st.integers(1, 5), st.integers(2, 4), st.booleans())
def test_fields_never_overlap_and_stay_inside_their_segment(
    observation, action, num_envs, rows, every
):
    layout = layout_of(observation, action, num_envs=num_envs, rows=rows, every=every)
    for found in segments_of(layout):
        end = 0
        for field in sorted(found.fields, key=lambda field: field.offset):
            assert field.offset >= end or not field.nbytes
            assert field.offset % 64 == 0
            end = max(end, field.offset + field.nbytes)
        assert end <= found.nbytes
        assert len({field.name for field in found.fields}) == len(found.fields)


@settings(max_examples=60, deadline=None)
@given(SPACES, SPACES, st.sampled_from([(False, 1), (False, 3), (True, 1), (True, 3)]))
def test_samples_survive_the_way_through_the_block(observation, action, delivery):
    every, chunk = delivery
    layout = layout_of(observation, action, num_envs=3, every=every)
    views = {}
    for found in (layout.row_segment(), layout.chunk_segment(chunk)):
        views |= found.views(mmap.mmap(-1, found.nbytes))
    assert all(view.flags.c_contiguous for view in views.values())
    grid = (2, 3, chunk) if every else (2, 3)
    ways = [
        ("obs", observation, layout.observation, grid),
        ("action", action, layout.action, (3, chunk)),
    ]
    samples = {
        (name, place): space.sample()
        for name, space, _, places in ways
        for place in np.ndindex(*places)
    }
    for name, _, parts, places in ways:
        for place in np.ndindex(*places):
            for leaf in parts:
                views[(name, *leaf.path)][place] = pick(samples[name, place], leaf.path)
    for name, space, parts, places in ways:
        for place in np.ndindex(*places):
            held = nest(space, {leaf.path: views[(name, *leaf.path)][place] for leaf in parts})
            for leaf in parts:
                value = np.asarray(pick(held, leaf.path))
                assert value.dtype == leaf.dtype
                np.testing.assert_array_equal(value, pick(samples[name, place], leaf.path))


@settings(max_examples=60, deadline=None)
@given(SPACES, SPACES)
def test_the_digest_differs_where_paths_shapes_or_dtypes_differ(first, second):
    described = [
        [(leaf.path, leaf.shape, leaf.dtype) for leaf in leaves(space, "observation")]
        for space in (first, second)
    ]
    digests = [layout_of(space, spaces.Discrete(2)).digest() for space in (first, second)]
    assert (described[0] == described[1]) == (digests[0] == digests[1])


def test_the_digest_tells_an_observation_from_an_action():
    a, b, c = (spaces.Box(0, 1, (size,), np.float32) for size in (1, 2, 3))
    one = layout_of(spaces.Dict({"a": a, "b": b}), spaces.Dict({"c": c}))
    other = layout_of(spaces.Dict({"a": a}), spaces.Dict({"b": b, "c": c}))
    assert one.digest() != other.digest()


def test_the_digest_differs_with_slots_rows_and_frames():
    space = spaces.Box(0, 1, (2,))
    layouts = [
        layout_of(space, space),
        layout_of(space, space, num_envs=4),
        layout_of(space, space, rows=3),
        layout_of(space, space, every=True),
    ]
    assert len({layout.digest() for layout in layouts}) == 4
    assert layouts[0].digest() == layout_of(space, space).digest()


UNSUPPORTED = [
    spaces.Tuple([spaces.Discrete(2)]),
    spaces.Text(5),
    spaces.Sequence(spaces.Discrete(2)),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
    spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
]


@pytest.mark.parametrize("space", UNSUPPORTED, ids=lambda space: type(space).__name__)
def test_an_unsupported_space_is_refused_with_its_path(space):
    with pytest.raises(UnsupportedSpace, match=rf"action space {type(space).__name__} at <root>"):
        leaves(space, "action")
    nested = spaces.Dict({"arm": spaces.Dict({"hand": space}), "x": spaces.Discrete(2)})
    with pytest.raises(UnsupportedSpace, match=rf"{type(space).__name__} at arm\.hand"):
        leaves(nested, "observation")


def test_an_empty_segment_still_has_a_byte_to_map():
    assert segment([]).nbytes == 1
    assert segment([(("nothing",), (3, 0), np.float32)]).nbytes >= 1


def test_leaving_frames_out_keeps_the_rest():
    state, pixels = spaces.Box(0, 1, (2,)), spaces.Box(0, 255, (4, 4, 3), np.uint8)
    space = spaces.Dict({"pixels/front": pixels, "state": state})
    assert without_frames(space) == spaces.Dict({"state": state})
    assert without_frames(state) is state
