"""Slots that grow and shrink with the needs of the rows."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.service.engine.cache import SlotCache, ladder, rung

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports resident pages")


def cache(limit: int = 200) -> SlotCache:
    return SlotCache(["key", "value"], slots=4, heads=2, head_width=3, limit=limit, dtype="float32")


def test_rungs_are_close_and_end_at_the_limit() -> None:
    assert ladder(200) == (16, 24, 32, 48, 64, 96, 128, 192, 200)
    assert ladder(256)[-2:] == (192, 256)
    assert ladder(5) == (8,)


@pytest.mark.parametrize("limit", [1, 16, 17, 100, 1024])
def test_every_rung_is_a_padded_width(limit: int) -> None:
    assert all(capacity % 8 == 0 for capacity in ladder(limit))
    assert rung(ladder(limit), limit) >= limit


def test_more_than_the_limit_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="201 positions are needed, the most is 200"):
        rung(ladder(200), 201)


def test_rows_survive_growth_and_all_other_cells_are_zero() -> None:
    slots = cache()
    slots.arrays["key"][:] = 7.0
    assert slots.fit(17, rows=2)
    assert slots.capacity == 24
    assert (slots.arrays["key"][:2, :, :16] == 7.0).all()
    assert not slots.arrays["key"][:2, :, 16:].any()
    assert not slots.arrays["key"][2:].any()


def test_capacity_shrinks_under_load_if_half_suffices() -> None:
    """On a server that is never idle, one long text must not slow all later ones."""
    slots = cache()
    slots.fit(190, rows=1)
    assert not slots.fit(97, rows=2), "128 is more than half of 192"
    slots.arrays["value"][0, :, :20] = 5.0
    assert slots.fit(20, rows=1)
    assert slots.capacity == 24
    assert (slots.arrays["value"][0, :, :20] == 5.0).all()


def test_capacity_does_not_flutter() -> None:
    slots = cache()
    slots.fit(24, rows=1)
    changes = [slots.fit(needed, rows=1) for needed in (16, 24, 15, 24, 13, 22)]
    assert not any(changes)


def test_memory_follows_the_capacity() -> None:
    slots = cache()
    small = slots.nbytes
    slots.fit(64, rows=0)
    assert slots.nbytes == 4 * small
    assert slots.bytes_per_position == 2 * 2 * 3 * np.dtype(np.float32).itemsize


def wide() -> SlotCache:
    """Each array takes many pages."""
    return SlotCache(["key", "value"], slots=8, heads=4, head_width=64, limit=256, dtype="float32")


@on_linux
def test_untouched_pages_are_not_resident() -> None:
    slots = wide()
    assert slots.resident_bytes == 0
    slots.arrays["key"][:2] = 1.0
    assert slots.resident_bytes == slots.nbytes // 8


@on_linux
def test_growth_gives_back_the_old_pages() -> None:
    slots = wide()
    before = slots.arrays
    for array in before.values():
        array[:] = 1.0
    slots.fit(32, rows=8)
    assert all((array[:, :, :16] == 1.0).all() for array in slots.arrays.values())
    assert not any(array.any() for array in before.values()), "given back: a read returns zeros"


@on_linux
def test_shrinking_at_rest_leaves_no_page_resident() -> None:
    slots = wide()
    slots.fit(256, rows=8)
    slots.arrays["value"][:] = 1.0
    assert slots.shrink()
    assert slots.resident_bytes == 0


def test_a_cache_without_arrays_takes_no_memory() -> None:
    """A model that only embeds has none."""
    slots = SlotCache([], slots=4, heads=2, head_width=3, limit=20, dtype="float32")
    assert (slots.nbytes, slots.resident_bytes, slots.arrays) == (0, 0, {})


ROWS = st.integers(0, 3)
EVENTS = st.one_of(
    st.tuples(st.just("fit"), st.integers(1, 200), st.integers(0, 4)),
    st.tuples(st.just("write"), ROWS, st.integers(0, 199)),
    st.tuples(st.just("move"), ROWS, ROWS),
    st.tuples(st.just("clear"), ROWS, ROWS),
    st.tuples(st.just("shrink"), ROWS, ROWS),
)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(EVENTS, max_size=30))
def test_cells_hold_the_written_value_or_zero(events: list[tuple[str, int, int]]) -> None:
    """Compare with a table as wide as the largest capacity."""
    slots, table = cache(), np.zeros((4, 200), np.float32)
    for number, (what, first, second) in enumerate(events, start=1):
        if what == "fit" and slots.fit(first, rows=second):
            table[second:] = 0
            table[:, slots.capacity :] = 0
        elif what == "write" and second < slots.capacity:
            slots.arrays["value"][first, :, second] = table[first, second] = number
        elif what == "move":
            slots.move(first, second)
            table[second] = table[first]
        elif what == "clear":
            slots.clear(first)
            table[first] = 0
        elif what == "shrink" and slots.shrink():
            table[:] = 0
        assert (slots.arrays["value"] == table[:, None, : slots.capacity, None]).all()
        assert not slots.arrays["key"].any()
