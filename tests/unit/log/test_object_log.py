"""The object log on a store whose every request can be held or made to fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from structlog.testing import capture_logs

from harness.slowlink import SlowLink
from sim import SimWorld
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    DataLossError,
    DeadlineError,
    EpochTooHighError,
    FencedError,
    NotFoundError,
    ObjectNotDeletedError,
    OverloadedError,
    UnavailableError,
)
from tailrace.log.claims import Claim
from tailrace.log.frames import HEADER_BYTES, EpochRange, StartRecord
from tailrace.log.object import ObjectLog
from tailrace.log.object_keys import LogKeys, kept_marks
from tailrace.log.object_recovery import WINDOW_FRAMES
from tailrace.log.object_requests import ObjectRequests, frame_window, put_deadline_s
from tailrace.log.object_scan import frame_in, scan_slots
from tailrace.segmentstore.container.ownership_check import OwnershipCheck
from tailrace.storage.contact import StoreContact, with_contact
from tailrace.storage.port import Buffer, ObjectInfo
from tailrace.storage.request_deadline import request_deadline

MIB = 1024 * 1024
KEYS = LogKeys(7)
NONCE = bytes(range(16))
OTHER_NONCE = bytes(range(1, 17))


class GateStore:
    """Objects in a dictionary. `hold` stops requests before or after their effect; `fail` answers them with errors."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.blind = False
        """Lists show nothing."""
        self.listed: dict[str, bytes] | None = None
        """What lists show in place of the objects."""
        self.protected: set[str] = set()
        """Keys that are never deleted; a deletion goes on with the others."""
        self.conflicts: set[str] = set()
        """Keys whose next put-if-absent is refused although there is nothing."""
        self.gets_at_once = 0
        """Of all but claims, the greatest number that waited for their answers so far."""
        self._gets = 0
        self._gates: list[tuple[str, str, bool, asyncio.Event]] = []
        self._failures: list[tuple[str, str, bool]] = []

    def hold(self, verb: str, key: str, *, after: bool = False) -> asyncio.Event:
        """Requests on keys that begin so wait until the event is set."""
        gate = asyncio.Event()
        self._gates.append((verb, key, after, gate))
        return gate

    def fail(self, verb: str, key: str, *, times: int = 1, after: bool = False) -> None:
        """The next requests on keys that begin so have an unknown outcome."""
        self._failures += [(verb, key, after)] * times

    async def gone(self, key: str) -> None:
        """Wait until an object is deleted."""
        while key in self.objects:  # noqa: ASYNC110 - the log has nothing else to wait for
            await asyncio.sleep(0)

    async def asked(self, verb: str, key: str, times: int) -> None:
        """Wait until so many requests were made."""
        while self.requests[verb, key] < times:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)

    async def _gated(self, verb: str, key: str, after: bool) -> None:
        for gated_verb, prefix, at, gate in self._gates:
            if (gated_verb, at) == (verb, after) and key.startswith(prefix):
                await gate.wait()
        for failure in self._failures:
            if (failure[0], failure[2]) == (verb, after) and key.startswith(failure[1]):
                self._failures.remove(failure)
                raise UnavailableError(f"{verb} {key} failed on purpose")

    async def _request(self, verb: str, key: str, effect: Callable[[], bytes | None]) -> bytes:
        self.requests[verb, key] += 1
        await self._gated(verb, key, False)
        error: Exception | None = None
        result = None
        try:
            result = effect()
        except (AlreadyExistsError, NotFoundError) as failure:
            error = failure
        await self._gated(verb, key, True)
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return result or b""

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        def effect() -> None:
            if if_absent and (key in self.objects or key in self.conflicts):
                self.conflicts.discard(key)
                raise AlreadyExistsError(key)
            self.objects[key] = content

        content = b"".join(data)
        await self._request("put", key, effect)

    async def get(self, key: str) -> bytes:
        def effect() -> bytes:
            if key not in self.objects:
                raise NotFoundError(key)
            return self.objects[key]

        counts = "/claims/" not in key
        self._gets += counts
        self.gets_at_once = max(self.gets_at_once, self._gets)
        try:
            return await self._request("get", key, effect)
        finally:
            self._gets -= counts

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return (await self.get(key))[offset : offset + length]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        shown = self.objects if self.listed is None else self.listed
        for key, content in [] if self.blind else list(shown.items()):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(content))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self.protected:
                await self._request("delete", key, lambda key=key: self.objects.pop(key, None))  # type: ignore[misc]
        for key in keys:
            if key in self.protected:
                self.requests["delete", key] += 1
                raise ObjectNotDeletedError(key, "AccessDenied: protected by object lock")

    async def close(self) -> None:
        """Nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> GateStore:
    monkeypatch.setattr(limits, "LOG_OBJECT_RETRY_MIN_S", 0.0001)
    monkeypatch.setattr(limits, "LOG_OBJECT_RETRY_MAX_S", 0.001)
    return GateStore()


async def opened(store: GateStore, epoch: int, nonce: bytes = NONCE) -> ObjectLog:
    log = ObjectLog(store, 7, max_frame_bytes=64 * 1024)
    await log.open(epoch, nonce)
    return log


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(200):
        await asyncio.sleep(0)


async def contents(log: ObjectLog) -> list[tuple[int, int, bytes]]:
    return [(frame.sequence, frame.epoch, bytes(frame.payload)) async for frame in log.recover()]


def claim(store: GateStore, number: int) -> None:
    """What a later owner does first."""
    store.objects[KEYS.claim(number)] = Claim(7, number, number, OTHER_NONCE).encode()


# -- acknowledgement


async def test_a_look_covers_only_what_was_stored_before_it_began(store: GateStore) -> None:
    log = await opened(store, 1)
    look = store.hold("get", KEYS.claim(2), after=True)  # it has looked, and its answer is on the way
    first = log.append([b"0"])
    await settle()
    second = log.append([b"1"])
    await settle()
    assert KEYS.frame(1, 1) in store.objects
    claim(store, 2)
    look.set()
    assert await first == 0
    with pytest.raises(FencedError, match="epoch 2"):
        await second
    await log.close()


async def test_one_look_covers_all_that_was_stored_before(store: GateStore) -> None:
    log = await opened(store, 1)
    gate = store.hold("put", KEYS.frame(1, 0))
    looks = store.requests["get", KEYS.claim(2)]
    futures = [log.append([b"x"]) for _ in range(10)]
    await settle()
    assert not any(future.done() for future in futures), "the first one is not stored"
    gate.set()
    assert await asyncio.gather(*futures) == list(range(10))
    assert store.requests["get", KEYS.claim(2)] - looks == 1
    await log.close()


async def test_an_error_of_the_look_is_no_acknowledgement(store: GateStore) -> None:
    log = await opened(store, 1)
    store.fail("get", KEYS.claim(2), times=5)
    gate = store.hold("get", KEYS.claim(2))
    future = log.append([b"x"])
    await settle()
    assert not future.done()
    gate.set()
    assert await future == 0
    assert store.requests["get", KEYS.claim(2)] >= 6
    await log.close()


async def test_a_claim_that_cannot_be_read_ends_the_log(store: GateStore) -> None:
    log = await opened(store, 1)
    store.objects[KEYS.claim(2)] = b"nonsense"
    for _ in range(2):
        with pytest.raises(UnavailableError, match="the object is not a claim"):
            await log.confirm_owner()
    assert log.owned_at_s == float("-inf")
    with pytest.raises(UnavailableError):
        await log.append([b"x"])
    await log.close()


async def test_the_owner_that_looks_knows_since_when(store: GateStore) -> None:
    log = await opened(store, 1)
    loop = asyncio.get_running_loop()
    gate = store.hold("get", KEYS.claim(2), after=True)
    began_s = loop.time()
    look = asyncio.create_task(log.confirm_owner())
    await settle()
    asked_s = loop.time()
    gate.set()
    await look
    assert began_s <= log.owned_at_s <= asked_s, "the time of the question counts, not that of the answer"
    claim(store, 2)
    with pytest.raises(FencedError):
        await log.confirm_owner()
    with pytest.raises(FencedError):
        await log.append([b"x"])
    await log.close()


# -- storing


async def test_frames_and_bytes_on_their_way_are_bounded(store: GateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_UNACKNOWLEDGED_MAX_BYTES", 1000)
    log = await opened(store, 1)
    gate = store.hold("put", KEYS.frame(1, 0))
    futures = [log.append([b"x" * 10]) for _ in range(100)]
    await settle()
    frames = sorted(key for verb, key in store.requests if verb == "put" and key >= KEYS.frame(1, 0))
    assert KEYS.frame(1, WINDOW_FRAMES - 1) in frames
    assert KEYS.frame(1, WINDOW_FRAMES) not in frames, "recovery looks no further behind a gap"
    with pytest.raises(OverloadedError):
        log.append([b"x"])
    assert (log.next_sequence, log.unsynced_bytes) == (100, 1000)
    gate.set()
    assert await asyncio.gather(*futures) == list(range(100))
    assert log.unsynced_bytes == 0
    assert await log.append([b"x" * 1000]) == 100
    await log.close()


async def test_puts_under_way_are_bounded(store: GateStore) -> None:
    log = await opened(store, 1)
    gate = store.hold("put", KEYS.folder)
    futures = [log.append([b"x"]) for _ in range(50)]
    await settle()
    assert (
        sum(verb == "put" for verb, _ in store.requests) - 2 == limits.LOG_OBJECT_PUTS_MAX
    )  # a claim, the START frame
    gate.set()
    assert await asyncio.gather(*futures) == list(range(50))
    await log.close()


async def test_a_put_whose_answer_was_lost_is_found_by_its_header(store: GateStore) -> None:
    log = await opened(store, 1)
    store.fail("put", KEYS.frame(1, 0), after=True)
    store.fail("put", KEYS.frame(1, 1), times=3)
    assert await asyncio.gather(log.append([b"there"]), log.append([b"not there"])) == [0, 1]
    assert store.requests["put", KEYS.frame(1, 0)] == 1
    assert store.requests["put", KEYS.frame(1, 1)] == 4
    await log.close()


async def test_foreign_bytes_under_the_own_key_end_the_log(store: GateStore) -> None:
    log = await opened(store, 1)
    stranger = ObjectLog(GateStore(), 7)
    await stranger.open(1, OTHER_NONCE)
    await stranger.append([b"stranger"])
    store.objects[KEYS.frame(1, 0)] = stranger._requests._store.objects[KEYS.frame(1, 0)]  # type: ignore[attr-defined]
    store.fail("put", KEYS.frame(1, 0))
    with pytest.raises(UnavailableError, match="another owner wrote here"):
        await log.append([b"x"])
    with pytest.raises(UnavailableError, match="another owner wrote here"):
        await log.append([b"y"])
    await log.close()
    await stranger.close()


async def test_a_request_that_hangs_is_repeated(store: GateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await opened(store, 1)
    monkeypatch.setattr(limits, "LOG_OBJECT_REQUEST_DEADLINE_S", 0.01)
    gate = store.hold("put", KEYS.frame(1, 0))
    future = log.append([b"x"])
    await store.asked("put", KEYS.frame(1, 0), 3)
    gate.set()
    assert await future == 0
    await log.close()


async def test_a_request_that_hangs_is_counted_as_one_without_an_answer_in_time(
    store: GateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_OBJECT_REQUEST_DEADLINE_S", 0.01)
    contact = StoreContact()
    requests = ObjectRequests(with_contact(store, contact))
    store.hold("put", KEYS.frame(1, 0))
    store.hold("get", KEYS.frame(1, 0))
    with pytest.raises(DeadlineError, match=r"no answer in 0\.01 s"):
        await requests.settle(KEYS.frame(1, 0), [bytes(HEADER_BYTES)], 1)
    with pytest.raises(DeadlineError):
        await requests.find(KEYS.frame(1, 0))
    assert contact.figures.errors == {("put", "deadline"): 1, ("get", "deadline"): 1}


async def test_a_request_that_hangs_is_counted_also_when_the_deadline_around_its_own_passes(store: GateStore) -> None:
    contact = StoreContact()
    store.hold("get", KEYS.frame(1, 0))
    with pytest.raises(DeadlineError, match=r"a look: no answer in 0\.01 s"):
        async with request_deadline("a look", 0.01):
            await ObjectRequests(with_contact(store, contact)).find(KEYS.frame(1, 0))
    assert contact.figures.errors == {("get", "deadline"): 1}


async def test_a_look_for_the_owner_that_hangs_is_counted(store: GateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OWNER_LOOK_DEADLINE_S", 0.01)
    monkeypatch.setattr(limits, "OWNER_ANSWER_DEADLINE_S", 600.0)
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", -1.0)
    contact, lost = StoreContact(), list[Exception]()
    log = ObjectLog(with_contact(store, contact), 7)
    await log.open(1, NONCE)
    store.hold("get", KEYS.claim(2))
    asked = store.requests["get", KEYS.claim(2)]
    check = OwnershipCheck(7, log, lost.append)
    read = asyncio.create_task(check.wait())
    async with asyncio.timeout(120.0):
        await store.asked("get", KEYS.claim(2), asked + 2)
    check.stop()
    await read
    assert contact.figures.errors[("get", "deadline")] >= 1
    assert not lost
    await log.close()


async def test_a_request_of_a_log_that_is_closed_is_no_error(store: GateStore) -> None:
    contact = StoreContact()
    log = ObjectLog(with_contact(store, contact), 7)
    await log.open(1, NONCE)
    store.hold("put", KEYS.frame(1, 0))
    future = log.append([b"x"])
    await store.asked("put", KEYS.frame(1, 0), 1)
    await log.close()
    with pytest.raises(FencedError):
        await future
    assert contact.figures.errors == {}


# -- a slow link


class SlowStore(GateStore):
    """A store behind a slow link. Only in virtual time."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        self.link = SlowLink(bytes_per_s)

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self.link.carry(sum(map(len, data)))
        await super().put(key, data, if_absent=if_absent)


FRAME = bytes(4 * MIB - 1000)


def over_a_slow_link(bytes_per_s: float, write: Callable[[SlowStore], Awaitable[None]]) -> float:
    """Write over a slow link in virtual time; return how many seconds that took."""
    with SimWorld(1) as world:

        async def main() -> float:
            loop = asyncio.get_running_loop()
            store = SlowStore(bytes_per_s)
            sending = loop.create_task(store.link.run())
            began_s = loop.time()
            async with asyncio.timeout(3600):
                await write(store)
            sending.cancel()
            return loop.time() - began_s

        return world.run(main())


def test_frames_that_a_slow_link_cannot_take_together_are_all_stored() -> None:
    """Sixteen at a time would all miss their deadline, start again, and never end."""

    async def write(store: SlowStore) -> None:
        log = ObjectLog(store, 7)
        await log.open(1, NONCE)
        assert await asyncio.gather(*(log.append([FRAME]) for _ in range(12))) == list(range(12))
        await log.close()

    assert over_a_slow_link(2 * MIB, write) < 3 * 24.0


def test_logs_of_a_process_share_a_slow_link() -> None:
    async def write(store: SlowStore) -> None:
        window = frame_window()
        logs = [ObjectLog(store, container, put_window=window) for container in range(12)]
        for log in logs:
            await log.open(1, NONCE)
        assert await asyncio.gather(*(log.append([FRAME]) for log in logs)) == [0] * 12
        for log in logs:
            await log.close()

    assert over_a_slow_link(MIB / 2, write) < 3 * 96.0


def test_a_frame_that_has_no_answer_in_time_again_and_again_is_reported_once_a_minute() -> None:
    async def write(store: SlowStore) -> None:
        log = ObjectLog(store, 7)
        await log.open(1, NONCE)
        with capture_logs() as logs:
            appended = [log.append([FRAME]) for _ in range(2)]
            await asyncio.sleep(300)
        reported = [line for line in logs if line["event"] == "log_frame_not_stored"]
        assert 4 <= len(reported) <= 5
        assert reported[0]["object"] in (KEYS.frame(1, 0), KEYS.frame(1, 1))
        assert reported[0]["timeouts"] == limits.LOG_OBJECT_PUT_TIMEOUTS_REPORT
        await log.close()
        assert all(isinstance(each, FencedError) for each in await asyncio.gather(*appended, return_exceptions=True))

    over_a_slow_link(MIB / 16, write)


@pytest.mark.parametrize(
    ("length_bytes", "within_s"),
    [(1, 5), (limits.STORAGE_SMALL_PUT_BYTES + 1, 300)],
    ids=["small enough to need no turn", "in its turn"],
)
def test_a_frame_is_stored_beside_frames_that_never_get_through(length_bytes: int, within_s: int) -> None:
    async def write(store: SlowStore) -> None:
        window = frame_window()
        logs = [ObjectLog(store, container, put_window=window) for container in (1, 2)]
        for log in logs:
            await log.open(1, NONCE)
        large = [logs[0].append([FRAME]) for _ in range(2)]
        await asyncio.sleep(60)
        async with asyncio.timeout(within_s):
            assert await logs[1].append([bytes(length_bytes)]) == 0
        assert not any(each.done() for each in large)
        for log in logs:
            await log.close()
        assert all(isinstance(each, FencedError) for each in await asyncio.gather(*large, return_exceptions=True))

    over_a_slow_link(MIB / 8, write)


def test_the_deadline_of_a_put_grows_with_its_length_and_its_timeouts() -> None:
    base_s, length = limits.LOG_OBJECT_REQUEST_DEADLINE_S, 4 * 1024 * 1024
    assert put_deadline_s(length, 0) == base_s
    assert base_s < put_deadline_s(length, 1) < put_deadline_s(length, 2)
    assert put_deadline_s(length, 1) < put_deadline_s(2 * length, 1)
    assert put_deadline_s(length, 1000) == limits.LOG_OBJECT_PUT_DEADLINE_MAX_S < limits.STORAGE_CALL_DEADLINE_S
    assert put_deadline_s(128, 8) < base_s + 0.01, "what fences and opens is small: its deadline stays"


# -- claims


async def test_every_epoch_up_to_the_own_one_is_claimed_in_order(store: GateStore) -> None:
    await (await opened(store, 2)).close()
    gate = store.hold("put", KEYS.claim(4))
    opening = asyncio.create_task(opened(store, 5))
    await settle()
    assert KEYS.claim(3) in store.objects
    assert KEYS.claim(5) not in store.objects, "a later claim before an earlier one would hide from its owner"
    gate.set()
    await (await opening).close()
    claims = [Claim.decode(store.objects[KEYS.claim(number)], "") for number in range(1, 6)]
    assert [(made.number, made.epoch) for made in claims] == [(1, 2), (2, 2), (3, 5), (4, 5), (5, 5)]


async def test_a_claim_whose_answer_was_lost_is_the_own_one(store: GateStore) -> None:
    store.fail("put", KEYS.claim(1), after=True)
    log = await opened(store, 1)
    assert store.requests["put", KEYS.claim(1)] == 2
    await log.close()


async def test_a_conflict_that_leaves_no_claim_is_tried_again(store: GateStore) -> None:
    """Some stores refuse a put-if-absent while another is under way, whatever becomes of that."""
    store.conflicts.add(KEYS.claim(1))
    log = await opened(store, 1)
    assert store.requests["put", KEYS.claim(1)] == 2
    await log.close()


async def test_one_epoch_has_one_owner(store: GateStore) -> None:
    gate = store.hold("put", KEYS.claim(1))
    rivals = [asyncio.create_task(opened(store, 1, nonce)) for nonce in (NONCE, OTHER_NONCE)]
    await settle()
    gate.set()
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [FencedError]
    for outcome in outcomes:
        if isinstance(outcome, ObjectLog):
            await outcome.close()


async def test_an_epoch_that_is_too_far_above_the_last_one_is_refused_with_that(store: GateStore) -> None:
    await opened(store, 3)
    with pytest.raises(EpochTooHighError) as refused:
        await opened(store, 4 + limits.LOG_CLAIMS_PER_OPEN_MAX)
    assert refused.value.last == 3
    assert KEYS.claim(4) not in store.objects


async def test_a_refusal_names_the_greatest_epoch(store: GateStore) -> None:
    await (await opened(store, 37)).close()
    for epoch in (1, 5, 36, 37):
        with pytest.raises(FencedError, match="37") as raised:
            await opened(store, epoch)
        assert raised.value.epoch == 37


# -- recovery


async def test_frame_0_says_what_counts(store: GateStore) -> None:
    log = await opened(store, 1)
    await asyncio.gather(*(log.append([b"x"]) for _ in range(3)))
    await log.close()
    await (await opened(store, 2)).close()  # appended nothing
    log = await opened(store, 4)
    await log.append([b"y"])
    await log.close()
    await (await opened(store, 5)).close()
    header, payload = frame_in(store.objects[KEYS.start(5)], "")
    assert StartRecord.decode(payload) == StartRecord(4, 4, (EpochRange(1, 0, 2), EpochRange(4, 3, 3)))
    assert (header.sequence, header.acknowledged_through, header.log_start) == (4, 3, 0)


async def abandoned_with_a_gap(store: GateStore, epoch: int = 1) -> None:
    """Frames 0 to 2 were acknowledged, 3 never arrived, 4 and 5 did."""
    log = await opened(store, epoch)
    await asyncio.gather(*(log.append([b"x"]) for _ in range(3)))
    store.hold("put", KEYS.frame(epoch, 3))
    for _ in range(3):
        log.append([b"y"]).add_done_callback(lambda done: done.exception())
    await settle()
    await log.close()
    store._gates.clear()
    assert KEYS.frame(epoch, 3) not in store.objects
    assert KEYS.frame(epoch, 5) in store.objects


@pytest.mark.parametrize("blind", [False, True])
async def test_a_gap_of_the_pipeline_is_dropped_for_good(store: GateStore, blind: bool) -> None:
    await abandoned_with_a_gap(store)
    store.blind = blind
    log = await opened(store, 2)
    assert [frame[:2] for frame in await contents(log)] == [(0, 1), (1, 1), (2, 1)]
    store.objects[KEYS.frame(1, 3)] = store.objects[KEYS.frame(1, 2)]  # arrives at last; no owner reads it any more
    assert await log.append([b"new"]) == 3
    await log.close()
    log = await opened(store, 3)
    assert (await contents(log))[3:] == [(3, 2, b"new")]
    await log.close()


@pytest.mark.parametrize("blind", [False, True])
async def test_damage_of_what_does_not_count_is_no_error(store: GateStore, blind: bool) -> None:
    """Behind a gap only headers tell anything, and what follows is dropped."""
    await abandoned_with_a_gap(store)
    damaged = bytearray(store.objects[KEYS.frame(1, 5)])
    damaged[HEADER_BYTES] ^= 1
    store.objects[KEYS.frame(1, 5)] = bytes(damaged)
    store.blind = blind
    log = await opened(store, 2)
    assert [frame[:2] for frame in await contents(log)] == [(0, 1), (1, 1), (2, 1)]
    await log.close()


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_an_acknowledged_frame_that_is_gone_is_a_loss(store: GateStore, lost: int, blind: bool) -> None:
    await abandoned_with_a_gap(store)
    del store.objects[KEYS.frame(1, lost)]
    store.blind = blind
    with pytest.raises(DataLossError, match=KEYS.frame(1, lost)):
        await opened(store, 2)


async def test_a_loss_beyond_all_that_may_be_under_way_is_seen_in_a_list(store: GateStore) -> None:
    log = await opened(store, 1)
    for _ in range(3 * WINDOW_FRAMES):
        await log.append([b"x"])
    await log.close()
    for lost in range(5, 3 * WINDOW_FRAMES - 1):
        del store.objects[KEYS.frame(1, lost)]
    with pytest.raises(DataLossError, match=KEYS.frame(1, 5)):
        await opened(store, 2)


@pytest.mark.parametrize("lost", [0, 2])
async def test_a_list_from_before_the_claim_hides_no_loss(store: GateStore, lost: int) -> None:
    """It shows no frame behind the missing one, and not the claim of the owner that asks, either."""
    await (await opened(store, 1)).close()
    store.listed = dict(store.objects)
    await abandoned_with_a_gap(store, epoch=2)
    del store.objects[KEYS.frame(2, lost)]
    with pytest.raises(DataLossError, match=KEYS.frame(2, lost)):
        await opened(store, 3)


async def test_a_frame_that_is_lost_after_it_was_listed_is_noticed(store: GateStore) -> None:
    """What shows that it was acknowledged was not there yet when the list was made."""
    await abandoned_with_a_gap(store)
    late = {KEYS.frame(1, number): store.objects.pop(KEYS.frame(1, number)) for number in (4, 5)}
    gate = store.hold("get", KEYS.start(1))
    opening = asyncio.create_task(opened(store, 2))
    await store.asked("get", KEYS.start(1), 1)
    del store.objects[KEYS.frame(1, 2)]
    store.objects |= late
    gate.set()
    with pytest.raises(DataLossError, match=KEYS.frame(1, 2)):
        await opening


async def test_an_opening_does_not_ask_for_what_no_owner_can_have_acknowledged(store: GateStore) -> None:
    log = await opened(store, 1)
    for number in range(1, 13):
        await log.append([b"x"])
        await log.truncate(number)
        await store.gone(KEYS.frame(1, number - 1))
    await log.append([b"x"])
    await log.close()
    store.requests.clear()
    log = await opened(store, 2)
    asked = {key for verb, key in store.requests if verb == "get"}
    marks = {KEYS.mark(1, number) for number in (12, 13, 14, 16)}
    frames = {KEYS.frame(1, 12), KEYS.frame(1, 13)}
    assert asked == {KEYS.claim(1), KEYS.claim(2), KEYS.claim(3), KEYS.start(1), *marks, *frames}
    await log.close()


async def test_frames_without_their_start_are_a_loss(store: GateStore) -> None:
    log = await opened(store, 1)
    await log.append([b"x"])
    await log.close()
    del store.objects[KEYS.start(1)]
    with pytest.raises(DataLossError, match="its START frame is missing"):
        await opened(store, 2)


async def test_logs_that_are_opened_together_share_the_slots_of_their_scans(store: GateStore) -> None:
    containers = range(4)
    slots = scan_slots()
    store.blind = True  # else few requests are left
    for epoch in (1, 2):
        store.gets_at_once = 0
        logs = [ObjectLog(store, container, max_frame_bytes=64 * 1024, scan_slots=slots) for container in containers]
        await asyncio.gather(*(log.open(epoch, NONCE) for log in logs))
        for log in logs:
            await asyncio.gather(*(log.append([b"frame"]) for _ in range(100)))
    assert store.gets_at_once == limits.LOG_OBJECT_SCAN_REQUESTS_MAX


async def test_a_slot_is_free_while_its_request_is_to_be_repeated(
    store: GateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await opened(store, 1)).append([b"frame"])
    monkeypatch.setattr(limits, "LOG_OBJECT_RETRY_MIN_S", 0.2)
    monkeypatch.setattr(limits, "LOG_OBJECT_RETRY_MAX_S", 0.2)
    slots = asyncio.Semaphore(1)
    store.blind = True  # else the frame alone and the one behind it are asked for
    store.fail("get", KEYS.frame(1, 0))
    log = ObjectLog(store, 7, max_frame_bytes=64 * 1024, scan_slots=slots)
    opening = asyncio.create_task(log.open(2, NONCE))
    await store.asked("get", KEYS.frame(1, 3), 1)  # asked for beside the one that failed
    assert store.requests["get", KEYS.frame(1, 0)] == 1
    await opening
    assert store.requests["get", KEYS.frame(1, 0)] == 2


async def test_damage_is_named_with_its_object(store: GateStore) -> None:
    log = await opened(store, 1)
    await asyncio.gather(*(log.append([bytes([number]) * 700]) for number in range(3)))
    await log.close()
    for key, bit in ((KEYS.start(1), 9), (KEYS.frame(1, 1), 300), (KEYS.frame(1, 1), 8 * 300)):
        whole = store.objects[key]
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        store.objects[key] = bytes(damaged)
        last = max(int(key.rpartition("/")[2]) for key in store.objects if "claims" in key)
        with pytest.raises(CorruptionError, match=key):
            await contents(await opened(store, last + 1))
        store.objects[key] = whole


async def test_a_damaged_claim_is_still_a_claim(store: GateStore) -> None:
    log = await opened(store, 1)
    store.objects[KEYS.claim(2)] = b"damaged"
    with pytest.raises(UnavailableError, match=f"stopped: corruption in {KEYS.claim(2)}"):
        await log.append([b"x"])
    await log.close()


async def test_an_object_in_anothers_place_is_corruption(store: GateStore) -> None:
    log = await opened(store, 1)
    await asyncio.gather(*(log.append([b"x"]) for _ in range(3)))
    await log.close()
    store.objects[KEYS.frame(1, 1)] = store.objects[KEYS.frame(1, 2)]
    with pytest.raises(CorruptionError, match=f"{KEYS.frame(1, 1)}: holds frame 2"):
        await opened(store, 2)


async def test_a_fenced_owner_never_reports_a_loss(store: GateStore) -> None:
    """What it misses was deleted by the one that came after it."""
    log = await opened(store, 1)
    await asyncio.gather(*(log.append([b"x"]) for _ in range(3)))
    del store.objects[KEYS.frame(1, 1)]
    claim(store, 2)
    with pytest.raises(FencedError):
        await contents(log)
    with pytest.raises(FencedError):
        await log.read(1, 0, 1)
    await log.close()


# -- truncation


async def test_nothing_is_deleted_by_an_owner_that_was_replaced(store: GateStore) -> None:
    log = await opened(store, 1)
    await asyncio.gather(*(log.append([b"x"]) for _ in range(3)))
    claim(store, 2)
    await log.truncate(3)
    await settle()
    assert all(KEYS.frame(1, number) in store.objects for number in range(3))
    with pytest.raises(FencedError):
        await log.append([b"x"])
    await log.close()


@pytest.mark.parametrize("blind", [False, True])
async def test_the_start_is_found_after_any_number_of_truncations(store: GateStore, blind: bool) -> None:
    store.blind = blind
    log = await opened(store, 1)
    for number in range(1, 101):
        await log.append([b"x" * 600])
        await log.truncate(number)
        await store.gone(KEYS.frame(1, number - 1))
    await settle()
    marks = {key for key in store.objects if "mark" in key}
    assert marks == {KEYS.mark(1, number) for number in kept_marks(100)}
    assert log.stored_bytes == 0
    await log.close()
    log = await opened(store, 2)
    assert (log.log_start, log.next_sequence) == (100, 100)
    await log.close()


async def test_left_overs_are_swept_and_claims_never(store: GateStore) -> None:
    await abandoned_with_a_gap(store)
    log = await opened(store, 2)
    await settle()
    left = sorted(store.objects)
    expected = [KEYS.frame(1, 0), KEYS.frame(1, 1), KEYS.frame(1, 2), KEYS.start(2), KEYS.claim(1), KEYS.claim(2)]
    assert left == sorted(expected)
    await log.close()
    assert not any(verb == "delete" and "claims" in key for verb, key in store.requests)


async def test_left_overs_stay_until_the_start_is_confirmed(store: GateStore) -> None:
    await abandoned_with_a_gap(store)
    gate = store.hold("get", KEYS.claim(3))
    opening = asyncio.create_task(opened(store, 2))
    await settle()
    assert KEYS.start(2) in store.objects
    claim(store, 3)
    gate.set()
    with pytest.raises(FencedError):
        await opening
    assert store.requests["get", KEYS.claim(3)] == 1, "a claim is an answer, not an outage"
    await settle()
    assert KEYS.start(1) in store.objects
    assert KEYS.frame(1, 5) in store.objects


async def test_an_outage_while_sweeping_does_no_harm(store: GateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await abandoned_with_a_gap(store)
    store.fail("delete", KEYS.folder, times=20)
    log = await opened(store, 2)
    await store.gone(KEYS.frame(1, 5))
    assert await log.append([b"x"]) == 3
    await log.close()


async def test_one_frame_that_is_never_deleted_keeps_back_no_others(store: GateStore) -> None:
    log = await opened(store, 1)
    for number in range(4):
        await log.append([b"%d" % number])
    store.protected = {KEYS.frame(1, 1)}
    await log.truncate(3)
    for sequence in (0, 2):
        await store.gone(KEYS.frame(1, sequence))
    await store.asked("delete", KEYS.frame(1, 1), limits.LOG_OBJECT_DELETE_REFUSALS_MAX)
    for number in range(4, 8):
        await log.append([b"%d" % number])
    await log.truncate(7)
    for sequence in range(3, 7):
        await store.gone(KEYS.frame(1, sequence))
    assert KEYS.frame(1, 1) in store.objects
    await log.close()
    again = await opened(store, 2)
    assert [bytes(frame.payload) async for frame in again.recover()][-1] == b"7"
    await again.close()
