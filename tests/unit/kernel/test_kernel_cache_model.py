"""The block cache against a model: both implementations run the same random operations in step with a dictionary."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tailrace.kernel import BLOCK_BYTES, CacheFullError, _cache, _cache_py, blocks_needed

LENGTHS = st.one_of(
    st.integers(0, 20),
    st.integers(-3, 3).map(lambda delta: BLOCK_BYTES + delta),
    st.integers(0, 12 * BLOCK_BYTES),
    st.integers(100 * BLOCK_BYTES, 300 * BLOCK_BYTES),
)


class CacheMachine(RuleBasedStateMachine):
    """Two buffers, so that entries of a few hundred blocks fill the cache and fragment it."""

    @initialize()
    def make(self) -> None:
        self.caches: list[Any] = [_cache.BlockCache(4 * 1024 * 1024), _cache_py.BlockCache(4 * 1024 * 1024)]
        self.total = 2 * 511
        self.entries: dict[int, bytes] = {}
        self.reserved = 0
        self.views: list[tuple[list[Any], bytes]] = []
        self.counter = 0

    def make_data(self, length: int) -> bytes:
        self.counter += 1
        return (self.counter.to_bytes(3, "big") * (length // 3 + 1))[:length]

    def both(self, name: str, *arguments: object) -> Any:
        """Runs one call on both; the results, or the errors, must be the same."""
        outcomes = []
        for cache in self.caches:
            try:
                outcomes.append(getattr(cache, name)(*arguments))
            except (CacheFullError, ValueError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1], (name, arguments)
        return outcomes[0]

    def free_blocks(self) -> int:
        free: int = self.caches[0].free_blocks
        return free

    def space_for(self, blocks: int, reserved: bool) -> bool:
        return blocks <= (self.reserved if reserved else self.free_blocks() - self.reserved)

    def pick(self, choice: int) -> int | None:
        """Address of some entry; one is inserted when there is none, and None is only returned if nothing fits."""
        if not self.entries:
            self.store(self.make_data(choice * 7), reserved=False)
        return sorted(self.entries)[choice % len(self.entries)] if self.entries else None

    def store(self, data: bytes, reserved: bool) -> None:
        blocks = blocks_needed(len(data))
        fits = self.space_for(blocks, reserved)
        result = self.both("insert", data, reserved)
        assert isinstance(result, int) is fits
        if fits:
            assert result not in self.entries
            self.entries[result] = data
            self.reserved -= blocks if reserved else 0

    @rule(length=LENGTHS, reserved=st.booleans())
    def insert(self, length: int, reserved: bool) -> None:
        self.store(self.make_data(length), reserved)

    @rule(left=st.integers(0, 3))
    def fill_up(self, left: int) -> None:
        """Leaves almost no space, so that the calls that follow meet the bound."""
        blocks = self.free_blocks() - self.reserved - left
        if blocks > 0:
            self.store(self.make_data(blocks * BLOCK_BYTES - left), reserved=False)

    @rule(choice=st.integers(0, 1000), length=LENGTHS, reserved=st.booleans())
    def append(self, choice: int, length: int, reserved: bool) -> None:
        address = self.pick(choice)
        if address is None:
            return
        content, data = self.entries[address], self.make_data(length)
        blocks = blocks_needed(len(content) + length) - blocks_needed(len(content))
        fits = self.space_for(blocks, reserved)
        result = self.both("append", address, len(content), data, reserved)
        assert isinstance(result, int) is fits
        if fits:
            del self.entries[address]
            self.entries[result] = content + data
            self.reserved -= blocks if reserved else 0

    @rule(choice=st.integers(0, 1000), wrong=st.integers(1, 4095))
    def append_with_a_wrong_length(self, choice: int, wrong: int) -> None:
        address = self.pick(choice)
        if address is not None:
            assert self.both("append", address, len(self.entries[address]) + wrong, b"x")[0] is ValueError

    @rule(choice=st.integers(0, 1000), length=LENGTHS, reserved=st.booleans())
    def replace(self, choice: int, length: int, reserved: bool) -> None:
        address = self.pick(choice)
        if address is None:
            return
        data = self.make_data(length)
        reserved_before = self.reserved
        more = max(0, blocks_needed(length) - blocks_needed(len(self.entries[address])))
        fits = self.space_for(more, reserved)
        result = self.both("replace", address, data, reserved)
        # Blocks under a view cannot be used again, so only without views is the outcome known from lengths alone.
        assert self.views or isinstance(result, int) is fits
        if isinstance(result, int):
            del self.entries[address]
            assert result not in self.entries
            self.entries[result] = data
            self.reserved = self.caches[0].reserved_blocks
            assert reserved or self.reserved == reserved_before
        else:
            assert result[0] is CacheFullError

    @rule(choice=st.integers(0, 1000))
    def delete(self, choice: int) -> None:
        address = self.pick(choice)
        if address is None:
            return
        free = self.free_blocks()
        freed = self.both("delete", address)
        del self.entries[address]
        assert freed == (self.free_blocks() - free) * BLOCK_BYTES
        assert self.both("read", address)[0] is ValueError

    @rule(address=st.integers(-1, 3 * 512))
    def delete_what_is_no_entry(self, address: int) -> None:
        if address not in self.entries:
            assert self.both("delete", address)[0] is ValueError

    @rule(choice=st.integers(0, 1000), offset=st.integers(0, 30_000), length=st.integers(0, 30_000), far=st.booleans())
    def read_range(self, choice: int, offset: int, length: int, far: bool) -> None:
        address = self.pick(choice)
        if address is None:
            return
        content = self.entries[address]
        if not far:
            offset %= len(content) + 1
            length %= len(content) - offset + 1
        result = self.both("read_range", address, len(content), offset, length)
        if offset + length <= len(content):
            assert result == content[offset : offset + length]
        else:
            assert result[0] is ValueError

    @rule(choice=st.integers(0, 1000))
    def view(self, choice: int) -> None:
        address = self.pick(choice)
        if address is None or len(self.views) >= 8:
            return
        views = [cache.view(address) for cache in self.caches]
        assert [len(buffer) for buffer in views[0].buffers] == [len(buffer) for buffer in views[1].buffers]
        self.views.append((views, self.entries[address]))

    @rule(choice=st.integers(0, 1000))
    def release(self, choice: int) -> None:
        if self.views:
            views, _ = self.views.pop(choice % len(self.views))
            for view in views:
                view.release()

    @rule(blocks=st.integers(0, 600))
    def reserve(self, blocks: int) -> None:
        fits = self.space_for(blocks, reserved=False)
        assert self.both("reserve", blocks) is fits
        self.reserved += blocks if fits else 0

    @rule(blocks=st.integers(0, 600), over=st.booleans())
    def release_reservation(self, blocks: int, over: bool) -> None:
        blocks = blocks % (self.reserved + 1)
        if over:
            assert self.both("release_reservation", self.reserved + 1 + blocks)[0] is ValueError
        else:
            self.both("release_reservation", blocks)
            self.reserved -= blocks

    @invariant()
    def figures_agree(self) -> None:
        native, pure = (cache.snapshot() for cache in self.caches)
        assert native == pure
        assert native.reserved_blocks == self.reserved <= native.free_blocks
        assert native.stored_bytes == sum(map(len, self.entries.values()))
        assert native.entries == len(self.entries)
        live = sum(blocks_needed(len(content)) for content in self.entries.values())
        assert native.free_blocks == self.total - live - native.deferred_blocks
        assert native.used_bytes + native.free_blocks * BLOCK_BYTES == native.max_bytes

    @invariant()
    def contents_agree(self) -> None:
        for cache in self.caches:
            for address, content in self.entries.items():
                assert cache.read(address) == content
        for views, content in self.views:
            for view in views:
                assert view.tobytes() == content

    def teardown(self) -> None:
        for views, _ in getattr(self, "views", []):
            for view in views:
                view.release()
        for cache in getattr(self, "caches", []):
            for address in self.entries:
                cache.delete(address)
            cache.release_reservation(self.reserved)
            figures = cache.snapshot()
            assert figures.free_blocks == figures.total_blocks
            assert (figures.pinned_blocks, figures.deferred_blocks, figures.stored_bytes) == (0, 0, 0)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=90, stateful_step_count=60, deadline=None)
