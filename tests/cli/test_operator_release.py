"""`tailrace-operator release` as a process, beside operators that run, against an API server over HTTP (ADR 0016)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from harness.apiserver import NAMESPACE, ApiServer, api_server, kubeconfig
from harness.ports import free_ports
from tailrace.cluster.kubernetes import LEASES
from tailrace.common import limits
from tailrace_operator.kube.manifests import FINALIZER
from tailrace_operator.kube.objects import DEPLOYMENTS, STREAMS
from tailrace_operator.uninstall.uninstaller import OPERATOR_LABELS

TEST_DEADLINE_S = 120.0
CODE = "from tailrace_operator.runtime.main import main; main()"
DEPLOYMENT = "tailrace-operator"


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; other processes have no other way to say so."""
    async with asyncio.timeout(TEST_DEADLINE_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.05)


class Pods:
    """Processes of the operator, and what Kubernetes does with those of its Deployment."""

    def __init__(self, server: ApiServer, kubeconfig: Path, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.running: list[asyncio.subprocess.Process] = []
        self._kubeconfig = kubeconfig
        self._count = 0

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """A process; its lines are in `log` by the order of starts."""
        with (self.folder / f"log-{self._count}").open("wb") as log:
            words = [*arguments, "--namespace", NAMESPACE, "--kubeconfig", str(self._kubeconfig)]
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", CODE, *words, stderr=log, stdout=log)
        self._count += 1
        self.running.append(process)
        return process

    async def operators(self, count: int) -> None:
        """A Deployment of so many pods, one of which leads."""
        labels = {"metadata": {"name": DEPLOYMENT, "labels": OPERATOR_LABELS}, "spec": {"replicas": count}}
        self.server.make(DEPLOYMENTS, labels)
        for port in free_ports(count):
            health = ["--health-host", "127.0.0.1", "--health-port", str(port)]
            await self.start("--image", "localhost/tailrace:test", *health)
        await self.until_leading()

    async def until_leading(self) -> None:
        """Wait until one of them leads."""
        await until(lambda: bool((self.server.find(LEASES, "tailrace-operator") or {"spec": {}})["spec"]))

    async def until_held(self, name: str) -> None:
        """Wait until an operator has put its finalizer on a Stream."""
        await until(lambda: FINALIZER in self.finalizers(name))

    async def attend(self) -> None:
        """End the pods once the Deployment is to have none, the standbys late."""
        await until(lambda: (self.server.find(DEPLOYMENTS, DEPLOYMENT) or {})["spec"]["replicas"] == 0)
        for pod in self.running[:2]:
            pod.send_signal(signal.SIGTERM)
            await asyncio.sleep(1)

    async def release(self, *arguments: str) -> int:
        """The command, from its start to its end."""
        command = await self.start("release", *arguments)
        return await asyncio.wait_for(command.wait(), TEST_DEADLINE_S)

    def finalizers(self, name: str) -> list[str]:
        """Those of a Stream."""
        return list((self.server.find(STREAMS, name) or {"metadata": {}})["metadata"].get("finalizers") or [])

    def log(self, number: int) -> list[dict[str, object]]:
        """The lines of a process."""
        return [json.loads(line) for line in (self.folder / f"log-{number}").read_text().splitlines()]


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[Pods]:
    async with api_server() as (server, address):
        found = Pods(server, kubeconfig(tmp_path, address), tmp_path)
        yield found
        for process in found.running:
            if process.returncode is None:
                process.kill()
                await process.wait()


def make_stream(server: ApiServer, name: str, *finalizers: str) -> None:
    spec = {"cluster": "main", "scope": "shop", "deletionPolicy": "Delete"}
    server.make(STREAMS, {"metadata": {"name": name, "finalizers": [*finalizers]}, "spec": spec})


async def test_operators_are_stopped_and_put_nothing_back(pods: Pods) -> None:
    server = pods.server
    await pods.operators(2)
    for number in range(20):
        make_stream(server, f"s{number}")
    for number in range(20):
        await pods.until_held(f"s{number}")
    attending = asyncio.create_task(pods.attend())
    assert await pods.release("--deployment", DEPLOYMENT) == 0
    released = [pods.finalizers(f"s{number}") for number in range(20)]
    await attending
    assert [await asyncio.wait_for(pod.wait(), TEST_DEADLINE_S) for pod in pods.running[:2]] == [0, 0]
    assert released == [pods.finalizers(f"s{number}") for number in range(20)] == [[]] * 20
    (released_line,) = [line for line in pods.log(2) if line["event"] == "all_released"]
    assert (released_line["namespace"], released_line["resources"]) == (NAMESPACE, 20)


async def test_an_operator_that_comes_back_holds_them_again(pods: Pods) -> None:
    make_stream(pods.server, "orders", FINALIZER)
    assert await pods.release() == 0
    assert pods.finalizers("orders") == []
    await pods.operators(1)
    await pods.until_held("orders")


async def test_thousands_are_let_go_in_pages(pods: Pods) -> None:
    server, count = pods.server, 2 * limits.KUBERNETES_PAGE + 100
    for number in range(count):
        make_stream(server, f"s{number}", "other.io/keep", FINALIZER)
    command = asyncio.create_task(pods.release("--deployment", DEPLOYMENT))
    server.down = True
    await asyncio.sleep(2)
    server.down = False
    assert await command == 0
    assert {tuple(pods.finalizers(f"s{number}")) for number in range(count)} == {("other.io/keep",)}
    lists = [request for request in server.requests if request.startswith("GET") and request.endswith("/streams")]
    assert len(lists) >= 3


async def test_a_failure_is_reported_in_one_line(pods: Pods) -> None:
    make_stream(pods.server, "orders", FINALIZER)
    pods.server.refuse[STREAMS.plural] = lambda _: "spec.scope: Required value"
    assert await pods.release("--deadline", "30") == 1
    last = pods.log(0)[-1]["reason"]
    assert "tailrace-operator release stopped: finalizer tailrace.io/operator is still on 1 resource:" in str(last)
    assert "Stream here/orders: set the finalizers of streams orders" in str(last)
    assert "spec.scope: Required value" in str(last)
    pods.server.refuse.clear()
    pods.server.down = True
    assert await pods.release("--deadline", "3") == 1
    assert "not completed within 3 s: listing other operators" in str(pods.log(1)[-1]["reason"])


async def test_it_exits_at_once_on_sigterm(pods: Pods) -> None:
    pods.server.down = True
    command = await pods.start("release")
    await until(lambda: pods.log(0) != [])
    command.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(command.wait(), TEST_DEADLINE_S) == 128 + signal.SIGTERM


async def test_a_deadline_has_a_second(pods: Pods) -> None:
    assert await pods.release("--deadline", "0") == 2
