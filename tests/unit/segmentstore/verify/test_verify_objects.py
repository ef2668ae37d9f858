"""Verification of object logs, of Tier 2 alone, and of snapshots: each kind of damage is found and named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.folderservice import served_folder
from tailrace.cluster.data_folder import LogKind, last_epoch, opened_epoch
from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import StartError, UnavailableError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.object import ObjectLog
from tailrace.log.object_cleaner import ObjectCleaner
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.restore.cluster import restore_cluster
from tailrace.segmentstore.restore.report import RestoreReport
from tailrace.segmentstore.tables.types import TableEntry
from tailrace.segmentstore.verify import folder as verify_module
from tailrace.segmentstore.verify.folder import verify_folder, verify_tier2
from tailrace.segmentstore.verify.report import Report
from tailrace.segmentstore.worker.worker import Worker

from ..conftest import eventually, take_snapshot

A, SOURCE, TABLE = "scope/a/0.#epoch.0", "scope/source/0.#epoch.0", "scope/_tables/t"
NUMBER = 0
Damage = Callable[["Cluster"], str]


class Cluster:
    """A data folder with one container, and its Tier 2 beside it."""

    def __init__(self, folder: Path, log: LogKind) -> None:
        self.data, self.tier2, self.log = folder / "data", folder / "tier2", log
        self.url = f"file://{self.tier2}"

    async def serve(self, work: Callable[[Worker], Awaitable[None]]) -> None:
        async with served_folder(self.data, 1, tier2=self.url, log=self.log) as worker:
            await work(worker)

    async def verify(self, *, alone: bool = False) -> Report:
        if alone:
            return await verify_tier2(self.url, entropy=SystemEntropy(), progress=lambda *_: None)
        return await verify_folder(self.data, entropy=SystemEntropy(), progress=lambda *_: None)

    async def restore(self) -> RestoreReport:
        shutil.rmtree(self.data)
        return await restore_cluster(
            self.data, tier2=self.url, clock=SystemClock(), entropy=SystemEntropy(), progress=lambda *_: None
        )

    def keys(self, pattern: str) -> list[str]:
        """Keys that match as a whole, in order."""
        paths = (path for path in self.tier2.rglob("*") if path.is_file() and "#" not in path.name)
        return sorted(key for path in paths if re.fullmatch(pattern, key := str(path.relative_to(self.tier2))))

    def flip(self, key: str, position: int) -> None:
        path = self.tier2 / key
        content = bytearray(path.read_bytes())
        content[position if position < len(content) else len(content) // 2] ^= 8
        path.write_bytes(content)


async def fill(worker: Worker) -> None:
    """Bytes in Tier 2, in the log, in both; merged; a table; an attribute index; marks and truncated frames."""
    container = worker.container_for(A)
    await container.create_segment(A)
    for number in range(3):
        await container.append(A, [bytes([number]) * 100_000])
        await container.flush_to_storage()
    await container.create_segment(SOURCE)
    await container.append(SOURCE, [b"transaction" * 1000])
    await container.flush_to_storage()
    await container.merge(A, SOURCE)
    for start in range(0, 2000, 500):
        updates = [
            AttributeUpdate(number.to_bytes(16, "big"), AttributeUpdateType.REPLACE, number)
            for number in range(start + 1, start + 501)
        ]
        await container.update_attributes(A, updates)
    dirty = container.state.by_name[A].dirty
    await eventually(lambda: len(dirty) < limits.FLUSH_ATTRIBUTES_THRESHOLD)  # else the last owner's end cuts that off
    tables = worker.table_service(container)
    await tables.create_table(TABLE, 0)
    await tables.update(TABLE, [TableEntry(b"key %d" % number, b"value") for number in range(100)])
    await take_snapshot(container)
    await container.append(A, [b"only in the log"])


async def more(worker: Worker) -> None:
    await worker.container_for(A).append(A, [b"again"])


@pytest.fixture(params=["object", "file"])
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    """Opened twice, closed in order."""
    cluster = Cluster(tmp_path, request.param)
    await cluster.serve(fill)
    await cluster.serve(more)
    return cluster


async def append_only(worker: Worker) -> None:
    """An owner that is killed before it writes anything to Tier 2 but its log."""
    await worker.container_for(A).append(A, [b"in the log alone"])


object_log = pytest.mark.parametrize("cluster", ["object"], indirect=True)


@pytest.mark.parametrize("alone", [False, True])
async def test_a_healthy_cluster(cluster: Cluster, alone: bool) -> None:
    assert container_of(A, 1) == NUMBER
    report = await cluster.verify(alone=alone)
    assert [str(problem) for problem in report.problems] == []
    assert report.healthy
    # What the last owner had uploaded and not committed when it was closed.
    assert all(re.match(r"[ac]0/.*-00000002-", orphan.key) for orphan in report.orphans), report.orphans
    assert report.snapshots >= 2
    assert report.segment_bytes > 300_000
    assert report.table_entries == 100
    if cluster.log == "object":
        assert report.log_objects >= 2 + 2 + 1
        assert report.log_frames > 0
        assert report.from_snapshots == 0
    else:
        assert report.log_objects == 0
        assert report.from_snapshots == int(alone)


@object_log
async def test_a_restored_folder_of_a_cluster_with_object_logs_has_everything(cluster: Cluster) -> None:
    for key in cluster.keys(r"s0/.*"):
        (cluster.tier2 / key).unlink()  # snapshots are not needed
    await cluster.restore()
    found: list[bytes] = []

    async def look(worker: Worker) -> None:
        container = worker.container_for(A)
        found.append(await container.read_exact(A, 0, (await container.info(A)).length))
        await container.append(A, [b"and it goes on"])

    await cluster.serve(look)
    assert found[0].endswith(b"only in the logagain")
    assert len(found[0]) == 300_000 + 11_000 + 20
    assert (await cluster.verify()).healthy


@object_log
async def test_a_log_that_cannot_be_recovered_is_reported_by_a_restore(cluster: Cluster) -> None:
    """The folder is still made: a server over it serves the other containers and reports what is wrong."""
    key = frame_payload(cluster)
    report = await cluster.restore()
    assert not report.whole
    assert key in report.containers[0].problem
    reasons: list[str] = []

    async def look(worker: Worker) -> None:
        reasons.extend(status.reason for status in worker.status())

    await cluster.serve(look)
    assert key in reasons[0]


def claim(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"log/0/claims/.*")[0], 30)
    return key


def start(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"log/0/\d+/start")[-1], 140)
    return key


def frame_payload(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"log/0/0*2/\d+")[-1], 130)
    return key


def frame_header(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"log/0/0*2/\d+")[-1], 50)
    return key


def frame_gone(cluster: Cluster) -> str:
    (cluster.tier2 / (key := cluster.keys(r"log/0/0*1/\d+")[-1])).unlink()
    return key


def chunk(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"c0/.*")[0], 200)
    return key


def page(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"a0/.*")[-1], 200)  # the first ones may be superseded
    return key


def snapshot(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"s0/.*")[-1], 100)
    return key


def older_snapshot(cluster: Cluster) -> str:
    cluster.flip(key := cluster.keys(r"s0/.*")[0], 100)
    return key


@object_log
@pytest.mark.parametrize(
    "damage", [claim, start, frame_payload, frame_header, frame_gone, chunk, page, snapshot, older_snapshot]
)
async def test_each_kind_of_damage_is_named(cluster: Cluster, damage: Damage) -> None:
    key = damage(cluster)
    for alone in (False, True):
        report = await cluster.verify(alone=alone)
        assert not report.healthy
        assert any(key in str(problem) for problem in report.problems), [str(problem) for problem in report.problems]


async def test_an_object_that_only_the_newest_snapshot_needs(cluster: Cluster) -> None:
    """Bytes that were in the log alone when it was taken: a restore needs them."""
    assert (await cluster.verify()).pending_deletes
    for key in cluster.keys(r"c0/.*"):
        (cluster.tier2 / key).rename(aside := cluster.tier2.parent / "aside")
        problems = (await cluster.verify()).problems
        aside.rename(cluster.tier2 / key)
        if problems and all("s0/" in problem.place for problem in problems):
            assert key in problems[0].reason
            break
    else:
        pytest.fail("no object is needed by the snapshot alone")
    cluster.flip(key, 80)
    (problem,) = (await cluster.verify()).problems
    assert problem.place == f"object {key}"


@pytest.mark.parametrize("alone", [False, True])
async def test_what_probes_left_behind_is_counted_apart(cluster: Cluster, alone: bool) -> None:
    """A server that was killed while it tried the store out; a later start deletes it."""
    before = await cluster.verify(alone=alone)
    left = ("probe/0123456789abcdef", "probe/fedcba9876543210/0/read-1", "probe/fedcba9876543210/0/read-2#7000000001")
    for key in (*left, "probe/odd"):
        (path := cluster.tier2 / key).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
    report = await cluster.verify(alone=alone)
    assert report.healthy == before.healthy
    assert report.probe_objects == len(left)
    assert {orphan.key for orphan in report.orphans} - {orphan.key for orphan in before.orphans} == {"probe/odd"}


@object_log
async def test_objects_of_the_log_that_its_next_owner_removes(cluster: Cluster) -> None:
    before = await cluster.verify()
    frame = cluster.keys(r"log/0/0*1/\d+")[0]
    shutil.copy(cluster.tier2 / frame, cluster.tier2 / re.sub(r"\d+$", f"{0:020}", frame))
    (cluster.tier2 / "log/0/odd").write_bytes(b"none of ours")
    report = await cluster.verify()
    assert report.healthy
    assert report.log_leftovers == before.log_leftovers + 1
    assert {orphan.key for orphan in report.orphans} - {orphan.key for orphan in before.orphans} == {"log/0/odd"}


@object_log
async def test_a_claim_that_is_gone(cluster: Cluster) -> None:
    (cluster.tier2 / cluster.keys(r"log/0/claims/.*")[0]).unlink()
    report = await cluster.verify()
    assert any("claims/00000000000000000002" in problem.place for problem in report.problems), report.problems


@object_log
@pytest.mark.parametrize("pattern", [r"log/0/\d+/.*", r"log/0/.*"], ids=["all but the claims", "all"])
async def test_a_log_that_is_gone(cluster: Cluster, pattern: str) -> None:
    for key in cluster.keys(pattern):
        (cluster.tier2 / key).unlink()
    (problem,) = (await cluster.verify()).problems
    assert problem.reason == "log log/0/ has lost epoch 2, its last one"


async def unswept(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, work: Callable[[Worker], Awaitable[None]]) -> None:
    """Serve as epoch 3, which ends before it deletes what epoch 2 needed."""

    async def never(*_: object) -> None:
        """The list failed, or the process was killed before."""

    with monkeypatch.context() as patch:
        patch.setattr(ObjectCleaner, "sweep", never)
        await cluster.serve(work)


def ends(report: Report) -> list[tuple[int, int, int, bool]]:
    return [(end.container, end.epoch, end.claimed, end.known) for end in report.log_ends]


@object_log
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("pattern", [r"log/0/0*3/.*", r"log/0/(claims/)?0*3(/.*)?"], ids=["all but its claim", "all"])
async def test_the_newest_epoch_of_a_log_is_gone_and_has_left_objects(
    cluster: Cluster, pattern: str, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their keys have its number. Without the epochs of the folder nothing else shows that it was there."""
    await unswept(cluster, monkeypatch, more)
    for key in cluster.keys(pattern):
        (cluster.tier2 / key).unlink()
    (problem,) = (await cluster.verify(alone=alone)).problems
    assert problem.reason == "log log/0/ has lost epoch 3, its last one"


@object_log
async def test_a_newest_epoch_that_left_no_objects_leaves_no_trace(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verification of Tier 2 alone cannot see that it is gone. It says up to where it has seen the log."""
    await unswept(cluster, monkeypatch, append_only)
    for key in cluster.keys(r"[ac]0/.*-0*3-.*|s0/0*3-.*"):
        (cluster.tier2 / key).unlink()  # as if the server had been killed before
    assert ends(await cluster.verify(alone=True)) == [(0, 3, 3, False)]
    for key in cluster.keys(r"log/0/0*3/.*"):
        (cluster.tier2 / key).unlink()
    report = await cluster.verify(alone=True)
    assert report.healthy, "an opening that failed leaves a claim, too"
    assert ends(report) == [(0, 2, 3, False)]
    (cluster.tier2 / f"log/0/claims/{3:020}").unlink()
    report = await cluster.verify(alone=True)
    assert report.healthy
    assert ends(report) == [(0, 2, 2, False)]
    (problem,) = (await cluster.verify()).problems
    assert problem.reason == "log log/0/ has lost epoch 3, its last one", "the folder knows it"


@object_log
async def test_the_epochs_of_the_folder_prove_where_a_log_ends(cluster: Cluster) -> None:
    assert ends(await cluster.verify()) == [(0, 2, 2, True)]


@object_log
async def test_a_claim_of_an_opening_that_was_killed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is whole, for a verification, in a restored folder, and for the next owner."""

    async def killed(*_: object) -> None:
        raise UnavailableError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectLog, "_recovered", killed)
        with pytest.raises(UnavailableError, match="killed"):
            await cluster.serve(more)
    assert len(cluster.keys(r"log/0/claims/.*")) == 3
    assert (await cluster.verify()).healthy
    report = await cluster.restore()
    assert report.whole
    assert report.containers[0].epoch == last_epoch(cluster.data, NUMBER) == 3
    assert opened_epoch(cluster.data, NUMBER) == 2
    await cluster.serve(more)
    assert (await cluster.verify()).healthy
    assert len(cluster.keys(r"log/0/claims/.*")) == 4


@object_log
async def test_a_mark_that_is_gone(cluster: Cluster) -> None:
    marks_of_owner = r"log/0/0*3/mark-\d+"
    newest = ""

    def has_another() -> bool:
        return max(cluster.keys(marks_of_owner), default="") > newest

    async def truncate(worker: Worker) -> None:
        nonlocal newest
        for _ in range(3):
            newest = max(cluster.keys(marks_of_owner), default="")
            await more(worker)
            await worker.container_for(A).flush_to_storage()
            await eventually(has_another)  # the log is truncated later: one mark may stand for two truncations

    await cluster.serve(truncate)
    marks = cluster.keys(marks_of_owner)
    assert len(marks) >= 2
    assert (await cluster.verify()).healthy
    (cluster.tier2 / marks[0]).unlink()
    assert not (await cluster.verify()).healthy


@object_log
async def test_a_cluster_that_is_in_use_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    account = verify_module.account_for_log

    async def meanwhile(*arguments: object) -> None:
        await account(*arguments)  # type: ignore[arg-type]
        await cluster.serve(more)

    monkeypatch.setattr(verify_module, "account_for_log", meanwhile)
    with pytest.raises(StartError, match="in use: log/0/ has a new owner"):
        await cluster.verify(alone=True)


@object_log
async def test_a_frame_that_arrives_after_its_owner_has_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request on its way outlives the process that sent it: the container is verified once more."""
    before = await cluster.verify()
    late = cluster.keys(r"log/0/0*2/\d+")[-1]
    frame = (cluster.tier2 / late).read_bytes()
    (cluster.tier2 / late).unlink()
    account = verify_module.account_for_log

    async def arrives(*arguments: object) -> None:
        await account(*arguments)  # type: ignore[arg-type]
        (cluster.tier2 / late).write_bytes(frame)

    monkeypatch.setattr(verify_module, "account_for_log", arrives)
    assert (await cluster.verify()).as_json() == before.as_json()


@object_log
@pytest.mark.parametrize("mistake", ["moved twice", "used twice"])
async def test_references_that_do_not_fit_their_sections(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """As a mistake in the software would make them: the bytes are there, and are not those of the place."""
    apply = ContainerState.apply

    def wrong(state: ContainerState, sequence: int, operation: ops.Operation, place: str = "log") -> None:
        apply(state, sequence, operation, place)
        segment = state.by_name.get(A)
        if segment is None or len(segment.chunks) < 2:
            return
        refs = sorted(segment.chunks, key=lambda ref: ref.segment_offset)
        if mistake == "moved twice" and refs[0].segment_offset == 0:
            (dropped,) = segment.chunks.truncate(refs[0].end)
            segment.chunks.add(dropped.shifted(10_000_000))
        elif mistake == "used twice" and refs[0].object_key != refs[1].object_key:
            segment.chunks.clear()
            for ref in (refs[0], refs[0].shifted(refs[0].length), *refs[2:]):
                state._use(ref.object_key)
                segment.chunks.add(ref)

    monkeypatch.setattr(ContainerState, "apply", wrong)
    report = await cluster.verify()
    words = " ".join(str(problem) for problem in report.problems)
    assert ("by 10000000" if mistake == "moved twice" else "has the same section") in words or "by 100000" in words
