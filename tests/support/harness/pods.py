"""The processes of a cluster's pods on this machine: stores with workers, controllers and a placer, as a pod runs them.

Kubernetes is `kubernetes_server`, the object store a real MinIO. A pod that is killed loses all its processes at once,
as one whose container ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from harness.kubernetesserver import NAMESPACE, KubernetesServer, kubernetes_server
from harness.minio import MinioProcess
from harness.ports import free_ports
from tailrace.cluster.cluster_map import ClusterMap, read_map
from tailrace.cluster.kubernetes import STREAM_CLUSTERS

CLUSTER = "orange"
CLUSTER_ID = "6f9619ff-8b86-4011-b42d-00c04fc964ff"
CONTAINERS = 8
WORKERS = 2
MEMORY = "1300MiB"
READY_DEADLINE_S = 120.0
END_DEADLINE_S = 130.0
POLL_S = 0.05
CALM_S = 2.0
"""How long the placer leaves an uneven map unchanged; shorter than in the operator, because every test waits for it."""
PLACER = Path(__file__).resolve().parent.parent / "placer.py"


async def until(what: str, holds: Callable[[], Any], within_s: float = READY_DEADLINE_S) -> float:
    """Wait until something holds (an awaitable's result counts); how long that took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return loop.time() - began_s
        assert loop.time() - began_s < within_s, f"{what}: not within {within_s} s"
        await asyncio.sleep(POLL_S)


@dataclass
class PodProcess:
    """One program in a process of its own, with all that it starts."""

    name: str
    folder: Path
    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    health: str = ""
    process: asyncio.subprocess.Process | None = None

    @property
    def log_file(self) -> Path:
        """What it printed, of all starts."""
        return self.folder / f"{self.name}.log"

    @property
    def runs(self) -> bool:
        """Whether it was started and did not end."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start it; `wait_ready` waits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self.words),
                env={"PATH": os.environ["PATH"], **self.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def get(self, path: str) -> httpx.Response:
        """What its health or admin port answers. Raises httpx.HTTPError."""
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            return await client.get(self.health + path)

    async def is_ready(self) -> bool:
        """What Kubernetes would find out."""
        assert self.process is not None
        assert self.process.returncode is None, self.log_file.read_text()[-1000:]
        with contextlib.suppress(httpx.HTTPError):
            return (await self.get("/readyz")).status_code == 200
        return False

    async def wait_ready(self, within_s: float = READY_DEADLINE_S) -> float:
        """Wait until it is ready; how long that took."""
        return await until(f"{self.name} is ready", self.is_ready, within_s)

    @property
    def pid(self) -> int:
        """Its main process."""
        assert self.process is not None
        return self.process.pid

    def log_events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event of the main process."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line.get("event") == name]

    async def terminate(self, within_s: float = END_DEADLINE_S) -> int:
        """SIGTERM, as Kubernetes ends a pod; the exit code."""
        assert self.process is not None
        self.process.terminate()
        async with asyncio.timeout(within_s):
            code = await self.process.wait()
        self.process = None
        return code

    def signal(self, number: int) -> None:
        """A signal for all its processes, its main process first."""
        assert self.process is not None
        main = psutil.Process(self.process.pid)
        for one in (main, *main.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    async def kill(self) -> None:
        """All its processes at once."""
        if self.process is None:
            return
        if self.process.returncode is None:
            self.signal(signal.SIGKILL)
        process, self.process = self.process, None
        await process.wait()


@dataclass
class StorePod(PodProcess):
    """A segment store pod."""

    @property
    def announced_as(self) -> str:
        """Its name in the cluster; `name` is that of its log."""
        return self.words[self.words.index("--pod") + 1]

    async def workers(self) -> list[dict[str, Any]]:
        """Return what it reports of its workers."""
        found: list[dict[str, Any]] = (await self.get("/v1/workers")).json()
        return found

    async def worker_pid(self, number: int) -> int:
        """The process of a worker."""
        return int((await self.workers())[number]["pid"])


class Pods:
    """A cluster: stores, controllers, a placer."""

    def __init__(self, folder: Path, server: KubernetesServer, address: str, minio: MinioProcess) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.kubernetes = server
        self.minio = minio
        self.bucket = minio.new_bucket()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(_kubeconfig(address)))
        self.stores: list[StorePod] = []
        self.controllers: list[PodProcess] = []
        place = [str(PLACER), NAMESPACE, CLUSTER, str(self.kubeconfig), str(CALM_S)]
        self.placer = PodProcess("placer", folder, place)

    def declare(self, containers: int = CONTAINERS) -> None:
        """Make the StreamCluster."""
        manifest = {"metadata": {"name": CLUSTER}, "spec": {"containers": containers, "adoptClusterId": CLUSTER_ID}}
        self.kubernetes.core.create(STREAM_CLUSTERS, manifest)

    def store(self, number: int, **options: str) -> StorePod:
        """A segment store pod, not started; ``options`` replace words of its command line."""
        first, *_, admin = free_ports(WORKERS + 1)
        name = f"{CLUSTER}-store-{number}"
        words = {
            "namespace": NAMESPACE,
            "cluster": CLUSTER,
            "cluster-id": CLUSTER_ID,
            "pod": name,
            "containers": str(CONTAINERS),
            "workers": str(WORKERS),
            "memory": MEMORY,
            "tier2": f"s3://{self.bucket}/a/prefix",
            "s3-endpoint": self.minio.endpoint,
            "bind": "127.0.0.1",
            "advertise": "127.0.0.1",
            "store-port": str(first),
            "admin-port": str(admin),
            "kubeconfig": str(self.kubeconfig),
            **{key.replace("_", "-"): value for key, value in options.items()},
        }
        pod = StorePod(
            name, self.folder, _command("segmentstore", words), self.minio.credentials, f"http://127.0.0.1:{admin}"
        )
        self.stores.append(pod)
        return pod

    def controller(self, number: int, api: str | None = None) -> PodProcess:
        """A controller, not started; it reaches Kubernetes at ``api``, by default as all others do."""
        kubeconfig = self.kubeconfig
        if api is not None:
            kubeconfig = self.folder / f"kubeconfig-{number}"
            kubeconfig.write_text(json.dumps(_kubeconfig(api)))
        port, rest = free_ports(2)
        words = {
            "namespace": NAMESPACE,
            "cluster": CLUSTER,
            "containers": str(CONTAINERS),
            "bind": "127.0.0.1",
            "advertise": "127.0.0.1",
            "controller-port": str(port),
            "rest-port": str(rest),
            "kubeconfig": str(kubeconfig),
        }
        name = f"{CLUSTER}-controller-{number}"
        pod = PodProcess(name, self.folder, _command("controller", words), {}, f"http://127.0.0.1:{rest}")
        self.controllers.append(pod)
        return pod

    def store_addresses(self) -> list[str]:
        """Where the workers of all store pods listen, as host:port."""
        firsts = [int(pod.words[pod.words.index("--store-port") + 1]) for pod in self.stores]
        return [f"127.0.0.1:{first + number}" for first in firsts for number in range(WORKERS)]

    def serving_workers(self) -> set[str]:
        """The workers of the store pods that were started and not ended."""
        pods = [pod for pod in self.stores if pod.process is not None]
        return {f"{pod.announced_as}-{number}" for pod in pods for number in range(WORKERS)}

    def address_of(self, controller: PodProcess) -> str:
        """Where clients reach a controller."""
        return f"tcp://127.0.0.1:{controller.words[controller.words.index('--controller-port') + 1]}"

    async def start(self, stores: int = 2, controllers: int = 2) -> None:
        """Everything at once, in no order."""
        self.declare()
        for number in range(controllers):
            self.controller(number)
        for number in range(stores):
            self.store(number)
        await self.complete()

    async def complete(self) -> None:
        """Start what does not run, and wait until every pod is ready and every container is where it belongs."""
        self.kubernetes.outage = False
        for pod in (*self.controllers, *self.stores, self.placer):
            if not pod.runs:
                await pod.start()
        for pod in (*self.controllers, *self.stores):
            await pod.wait_ready()
        await self.settle()

    def map(self) -> ClusterMap:
        """Return the stored map."""
        return read_map(self.kubernetes.core.get(STREAM_CLUSTERS, CLUSTER))

    def wipe_status(self) -> None:
        """Empty the status of the StreamCluster, as a user could."""
        core = self.kubernetes.core
        core.replace_status(STREAM_CLUSTERS, {**core.get(STREAM_CLUSTERS, CLUSTER), "status": {}})

    def placed(self) -> dict[str, list[int]]:
        """Containers by worker, as the map has it."""
        found: dict[str, list[int]] = {}
        for number, assignment in sorted(self.map().assignments.items()):
            found.setdefault(assignment.worker, []).append(number)
        return found

    async def settle(self, within_s: float = READY_DEADLINE_S) -> float:
        """Wait until all workers have an even share of the containers and run it, and nothing is on its way.

        All means those of the pods that were started: a pod can be ready before the placer has heard of its workers.
        Returns how long that took.
        """
        return await until("every container runs where it is placed, evenly", self._is_settled, within_s)

    async def _is_settled(self) -> bool:
        cluster_map = self.map()
        assignments = cluster_map.assignments
        if len(assignments) < cluster_map.container_count or any(a.handed_over_by for a in assignments.values()):
            return False
        placed = self.placed()
        serving = self.serving_workers()
        if not serving or not serving <= set(cluster_map.workers):
            return False
        shares = [len(placed.get(worker, [])) for worker in cluster_map.workers]
        if max(shares) - min(shares) > 1:
            return False
        running: list[int] = []
        for pod in self.stores:
            if pod.process is None:
                continue
            try:
                answer = await pod.get("/v1/containers")
            except httpx.HTTPError:
                return False
            if answer.status_code != 200:
                return False
            running += [item["container_id"] for item in answer.json() if item["state"] == "running"]
        return sorted(running) == list(range(cluster_map.container_count))

    async def close(self) -> None:
        """End everything."""
        for pod in (*self.controllers, *self.stores, self.placer):
            await pod.kill()


def _command(name: str, words: Mapping[str, str]) -> list[str]:
    given = [word for key, value in words.items() for word in (f"--{key}", value)]
    return ["-m", "tailrace.cli", name, *given]


def _kubeconfig(address: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


@asynccontextmanager
async def pods_of_a_cluster(folder: Path, minio: MinioProcess) -> AsyncIterator[Pods]:
    """A cluster without any process yet."""
    async with kubernetes_server() as (server, address):
        pods = Pods(folder, server, address, minio)
        try:
            yield pods
        finally:
            await pods.close()
