"""What the commands of a cluster's pods refuse, in one line, and what they tell their workers (ADR 0013)."""

from __future__ import annotations

import asyncio
import dataclasses
import socket

import httpx
import pytest

from tailrace.cli.main import run
from tailrace.common import limits
from tailrace.processes.segment_store_pod import (
    StorePodOptions,
    checked_budgets,
    refuse_remote_writes,
    trouble_of,
)
from tailrace.processes.worker_watchdog import WorkerWatchdog
from tailrace.processes.workers import WorkerPlace, WorkerProcess
from tailrace.processes.workers_admin import Workers, create_app, describe, joined_metrics
from tailrace.segmentstore.worker.folder_service import StoreSpec
from tailrace.segmentstore.worker.process import Orders, decode_orders, encode_orders

CLUSTER_ID = "6f9619ff-8b86-4011-b42d-00c04fc964ff"
OPTIONS = StorePodOptions(
    namespace="there",
    cluster="orange",
    cluster_id=CLUSTER_ID,
    pod="orange-store-0",
    containers=16,
    workers=2,
    memory_bytes=1536 * limits.MIB,
    tier2="s3://bucket/prefix",
    s3_endpoint=None,
    s3_region=None,
    bind="127.0.0.1",
    advertise="orange-store-0.there.svc",
    store_port=12345,
    admin_port=6061,
    kubeconfig=None,
)
STORE = [
    "segmentstore",
    *(
        "--namespace",
        "there",
        "--cluster",
        "orange",
        "--pod",
        "orange-store-0",
        "--advertise",
        "orange-store-0.there.svc",
    ),
    *("--tier2", "s3://bucket/prefix", "--bind", "127.0.0.1"),
]
CONTROLLER = ["controller", "--namespace", "there", "--cluster", "orange", "--advertise", "x", "--bind", "127.0.0.1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--cluster-id", CLUSTER_ID, "--containers", "16", "--workers", "2", "--memory", "1GiB"],
            "memory of 1024 MiB is too small for 2 workers: at least 1262 MiB are needed",
        ),
        (
            ["--cluster-id", CLUSTER_ID, "--containers", "16", "--memory", "100TiB"],
            "is more than this machine or its cgroup has",
        ),
        (["--cluster-id", "orange", "--containers", "16", "--memory", "2GiB"], "--cluster-id 'orange' is not a UUID"),
        (["--cluster-id", CLUSTER_ID, "--containers", "9999", "--memory", "2GiB"], "--containers 9999 is not between"),
        (
            ["--cluster-id", CLUSTER_ID, "--containers", "1", "--memory", "2GiB", "--s3-endpoint", "minio:9000"],
            "--s3-endpoint 'minio:9000' is not of the form http://HOST:PORT",
        ),
    ],
)
def test_a_store_that_cannot_start(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*STORE, *words]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("tailrace: ")
    assert message in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--containers", "4"], "the Kubernetes API cannot be reached from here"),
        (["--containers", "4", "--kubeconfig", "/nowhere"], "the kubeconfig cannot be used"),
        (["--containers", "9999"], "--containers 9999 is not between"),
    ],
)
def test_a_controller_that_cannot_start(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*CONTROLLER, *words]) == 1
    *printed, line = capfd.readouterr().err.splitlines()
    assert message in line
    assert all("budgets" in each for each in printed), "what a controller prints before it looks for the cluster"
    assert len(printed) <= 1


def test_workers_are_named_and_reached_by_their_numbers() -> None:
    specs = OPTIONS.specs(checked_budgets(OPTIONS))
    assert [spec.worker for spec in specs] == ["orange-store-0-0", "orange-store-0-1"]
    assert [f"{spec.host}:{spec.port}" for spec in specs] == [
        "orange-store-0.there.svc:12345",
        "orange-store-0.there.svc:12346",
    ]
    assert [spec.siblings for spec in specs] == [("orange-store-0-1",), ("orange-store-0-0",)]
    budgets = checked_budgets(OPTIONS).worker
    assert all(spec.budgets == budgets for spec in specs)


@pytest.mark.parametrize(
    "spec",
    [
        *OPTIONS.specs(checked_budgets(dataclasses.replace(OPTIONS, kubeconfig="/k", s3_region="eu"))),
        StoreSpec("/data", "", None, CLUSTER_ID, 4, (0, 2), 1 << 26),
    ],
)
def test_orders_come_as_they_were_given(spec: object) -> None:
    orders = Orders(spec, 3, 4)  # type: ignore[arg-type]
    assert decode_orders(encode_orders(orders)) == orders


def test_metrics_of_workers_keep_their_numbers() -> None:
    text = "# HELP a b\n# TYPE a gauge\na 1.0\n"
    labelled = '# HELP c d\n# TYPE c gauge\nc{x="y"} 2.0\n'
    assert joined_metrics({0: text, 3: text + labelled}) == (
        '# HELP a b\n# TYPE a gauge\na{worker="0"} 1.0\na{worker="3"} 1.0\n'
        '# HELP c d\n# TYPE c gauge\nc{worker="3",x="y"} 2.0\n'
    )


@pytest.mark.parametrize(("client", "allowed"), [("127.0.0.1", True), ("::1", True), ("10.0.0.7", False), ("x", False)])
async def test_orders_are_taken_from_within_the_pod_only(client: str, allowed: bool) -> None:
    """The admin port is unauthenticated, and every pod of the namespace can reach it."""
    app = create_app(Workers([]), 16, no_owner)
    refuse_remote_writes(app)
    transport = httpx.ASGITransport(app, client=(client, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://store:6061") as asking:
        flush = await asking.post("/v1/containers/3/flush")
        assert flush.status_code == (503 if allowed else 403)
        assert (await asking.get("/ping")).status_code == 200


async def test_what_a_worker_that_follows_cannot_open_is_a_reason_beside_ready() -> None:
    """It is no reason to send its siblings' clients away; it ends when the worker says that it goes on."""
    with socket.socket() as store, socket.socket() as admin:
        worker = WorkerProcess(1, WorkerPlace(OPTIONS.specs(checked_budgets(OPTIONS))[1], store, admin))
        assert trouble_of(worker, OPTIONS.names) == "orange-store-0-1: does not follow the container map yet"
        for lines, reason in (
            ("ready\nfollowing\n", ""),
            ("waiting: container 0 has not been open for 12 s: why\n", "container 0 has not been open for 12 s: why"),
            ("following\n", ""),
        ):
            process = await asyncio.create_subprocess_exec("printf", lines, stdout=asyncio.subprocess.PIPE)
            assert await worker._listen(process, WorkerWatchdog()) == ""
            await process.wait()
            assert worker.state == "following"
            assert describe(worker)["reason"] == reason
            assert trouble_of(worker, OPTIONS.names) == (reason and f"orange-store-0-1: {reason}")


async def no_owner(container_id: int) -> str | None:
    """See FindOwner."""
    return None
