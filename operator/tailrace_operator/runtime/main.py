"""The process `tailrace-operator` (ADR 0013): takes the lead, then watches, reconciles and places until it ends.

A standby looks at the workers' Leases, and serves its health endpoint. Who loses the lead ends at once, so that two
never work for long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from tailrace.cluster.kubernetes_api import HttpKubernetes
from tailrace.cluster.kubernetes_requests import in_cluster_configuration, kubeconfig_configuration
from tailrace.cluster.prober import HelloProber
from tailrace.common import limits
from tailrace.common.errors import StartError, TailraceError
from tailrace.common.http import listen, serve_app
from tailrace.common.logs import configure_logs
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.task_groups import run_all, running
from tailrace_operator.cluster.names import MANAGED
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.cluster.reconcile import StreamClusterReconciler
from tailrace_operator.cluster.state import notable, told_to_followers
from tailrace_operator.cluster.tier2 import MinioProbe
from tailrace_operator.connections.controllers import ClusterName, Controllers
from tailrace_operator.kube.handlers import Watching, forward_logs
from tailrace_operator.kube.leader_election import Leadership
from tailrace_operator.kube.objects import DEPLOYMENTS, STATEFUL_SETS, STREAM_CLUSTERS, HttpObjects
from tailrace_operator.readergroup.reconcile import ReaderGroupReconciler
from tailrace_operator.reconcile.keys import Key, cluster_of, owner_of
from tailrace_operator.reconcile.loop import Rounds
from tailrace_operator.runtime.health import Health
from tailrace_operator.runtime.standby import Standby
from tailrace_operator.stream.reconcile import StreamReconciler
from tailrace_operator.uninstall.namespace_teardown import release_namespace
from tailrace_operator.uninstall.release_command import NAME as RELEASE
from tailrace_operator.uninstall.release_command import release, release_settings_of
from tailrace_operator.uninstall.uninstaller import KINDS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tailrace.cluster.failure import FailureDetector
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.cluster.kubernetes_requests import Configuration
    from tailrace_operator.uninstall.release_command import ReleaseSettings

IMAGE_VARIABLE: Final = "TAILRACE_IMAGE"
POD_VARIABLE: Final = "POD_NAME"

_logger = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the command line and the environment say. ``namespace``: where the operator's own Lease is."""

    namespace: str
    all_namespaces: bool
    kubeconfig: str | None
    image: str
    identity: str
    health_host: str
    health_port: int
    cluster_period_s: float

    @property
    def served(self) -> str | None:
        """The namespace that is served; None: all are."""
        return None if self.all_namespaces else self.namespace

    def configuration(self) -> Configuration:
        """How the API is reached; a new one for each user of it. Raises StartError."""
        return kubeconfig_configuration(self.kubeconfig) if self.kubeconfig else in_cluster_configuration()


def settings_of(arguments: Sequence[str], environment: dict[str, str]) -> Settings:
    """Read the command line. Ends the process when it is wrong, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="tailrace-operator",
        description=__doc__.partition("\n")[0],
        epilog=f"`tailrace-operator {RELEASE} --help` tells how one is taken away for good.",
    )
    parser.add_argument("--namespace", required=True, help="the operator's own namespace, and the one that it serves")
    parser.add_argument("--all-namespaces", action="store_true", help="serve all namespaces")
    parser.add_argument("--kubeconfig", help="how to reach the API from outside of a pod")
    parser.add_argument(
        "--image",
        default=environment.get(IMAGE_VARIABLE),
        help=f"image of pods whose resource names none (default: ${IMAGE_VARIABLE})",
    )
    parser.add_argument("--health-host", default="0.0.0.0", help="where health and metrics are served")
    parser.add_argument("--health-port", type=int, default=limits.OPERATOR_HEALTH_PORT)
    parser.add_argument(
        "--cluster-period",
        type=float,
        default=limits.OPERATOR_CLUSTER_PERIOD_S,
        help="seconds between two looks at a StreamCluster that nobody changes",
    )
    found = parser.parse_args(arguments)
    if not found.image:
        parser.error(f"--image or the variable {IMAGE_VARIABLE} must say which image pods run")
    if found.cluster_period < limits.OPERATOR_PERIOD_MIN_S:
        parser.error(f"a period has at least {limits.OPERATOR_PERIOD_MIN_S:g} s")
    suffix = SystemEntropy().token(4).hex()
    return Settings(
        namespace=found.namespace,
        all_namespaces=found.all_namespaces,
        kubeconfig=found.kubeconfig,
        image=found.image,
        identity=f"{environment.get(POD_VARIABLE) or os.uname().nodename}-{suffix}",
        health_host=found.health_host,
        health_port=found.health_port,
        cluster_period_s=found.cluster_period,
    )


class Operator:
    """The active process: everything that runs while it leads."""

    def __init__(self, settings: Settings, health: Health, known: dict[tuple[str, str], FailureDetector]) -> None:
        self._settings = settings
        self._health = health
        self._apis: dict[str, HttpKubernetes] = {}
        self._objects = HttpObjects(settings.configuration(), settings.identity)
        self._probe = MinioProbe()
        self._controllers = Controllers(self._objects)
        self._placements = Placements(self._api_of, HelloProber(), self._leave, known, self._homes_changed)
        self._rounds = Rounds(self._objects, settings.served, SystemClock(), SystemEntropy())
        clusters = StreamClusterReconciler(
            self._objects,
            self._probe,
            self._placements,
            image=settings.image,
            namespace=settings.served,
            period_s=settings.cluster_period_s,
        )
        self._rounds.add(clusters, notable)
        self._rounds.add(StreamReconciler(self._objects, self._controllers), follows=cluster_of)
        self._groups = ReaderGroupReconciler(self._objects, self._controllers)
        self._rounds.add(self._groups, follows=cluster_of)
        self._rounds.lead(STREAM_CLUSTERS, told_to_followers, self._cluster_changed)

    async def run(self) -> None:
        """Work until cancelled. Raises TailraceError: something that must not end has ended."""
        await self._wait_for_kinds()
        watched: list[tuple[Kind, dict[str, str]]] = [(kind, {}) for kind in self._rounds.kinds]
        watched += [(kind, dict(MANAGED)) for kind in (STATEFUL_SETS, DEPLOYMENTS)]
        watching = Watching(self._settings.configuration(), self._settings.served, watched, self._heard)
        self._health.trouble = self._rounds.trouble
        self._health.figures = self._figures
        try:
            await run_all(watching.run(), self._rounds.run())
        finally:
            await self._placements.close()

    async def close(self) -> None:
        """Let go of all connections."""
        await self._controllers.close()
        self._probe.close()
        self._objects.close()
        for api in self._apis.values():
            await api.close()

    async def _wait_for_kinds(self) -> None:
        """kopf watches only what there is when it begins."""
        for kind in self._rounds.kinds:
            while True:
                try:
                    await self._objects.list(kind, self._settings.served)
                    break
                except TailraceError as error:
                    _logger.warning("kind_not_served", kind=kind.kind, reason=str(error))
                await asyncio.sleep(limits.OPERATOR_KINDS_RETRY_S)

    def _heard(self, kind: Kind, change: str | None, manifest: Manifest) -> None:
        if kind in (STATEFUL_SETS, DEPLOYMENTS):
            owner = owner_of(manifest, STREAM_CLUSTERS)
            if owner is not None:
                self._rounds.child_changed(owner)
        else:
            self._rounds.heard(kind, change, manifest)

    def _homes_changed(self, namespace: str, cluster: str) -> None:
        self._rounds.child_changed(Key(STREAM_CLUSTERS.plural, namespace, cluster))

    def _cluster_changed(self, key: Key) -> None:
        cluster = ClusterName(key.namespace, key.name)
        self._controllers.look_anew(cluster)
        self._groups.look_anew(cluster)

    def _api_of(self, namespace: str) -> HttpKubernetes:
        if namespace not in self._apis:
            self._apis[namespace] = HttpKubernetes(self._settings.configuration(), namespace)
        return self._apis[namespace]

    async def _leave(self, namespace: str) -> None:
        """Namespaces come and go: their connections and threads must not stay."""
        api = self._apis.pop(namespace, None)
        if api is not None:
            await api.close()

    def _figures(self) -> dict[str, tuple[str, float]]:
        return {
            "objects": ("Objects that are known", len(self._rounds)),
            "clusters_placed": ("StreamClusters with a placer", len(self._placements)),
            "reconciled": ("Looks at objects since the start", self._rounds.reconciled),
            "failed": ("Of which failed", self._rounds.failed),
        }


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until `stop` is set. Raises TailraceError: the process must end; its message is the line to show."""
    health = Health()
    async with contextlib.AsyncExitStack() as stack:
        listener = listen("health", settings.health_host, settings.health_port)
        port = listener.getsockname()[1]
        await stack.enter_async_context(serve_app(health.app(), listener))
        _logger.info("started", namespace=settings.served or "all", health_port=port, identity=settings.identity)
        api = HttpKubernetes(settings.configuration(), settings.namespace)
        stack.push_async_callback(api.close)
        leadership = Leadership(api, settings.identity, SystemClock())
        health.ready = True
        try:
            known: dict[tuple[str, str], FailureDetector] = {}
            if await _unless_stopped(_stand_by(settings, leadership, known), stop):
                health.leads = True
                await _lead(settings, health, leadership, known, stop)
        finally:
            health.leads = False
            if stop.is_set():
                await _part(settings)
            await leadership.release()  # after all else has ended: who takes it now is alone


async def _stand_by(settings: Settings, leadership: Leadership, known: dict[tuple[str, str], FailureDetector]) -> None:
    """Until this process leads; `known` is then what it saw of the workers meanwhile."""
    objects = HttpObjects(settings.configuration(), settings.identity)
    standby = Standby(objects, settings.served)
    try:
        async with running(standby.run()):
            await leadership.acquire()
        known.update(standby.detectors)
    finally:
        objects.close()


async def _part(settings: Settings) -> None:
    """Standbys, too: nobody knows which of the pods of a namespace that goes has its rights for longest."""
    objects = HttpObjects(settings.configuration(), settings.identity)
    try:
        await release_namespace(objects, KINDS, settings.namespace, SystemClock())
    finally:
        objects.close()


async def _lead(
    settings: Settings,
    health: Health,
    leadership: Leadership,
    known: dict[tuple[str, str], FailureDetector],
    stop: asyncio.Event,
) -> None:
    operator = Operator(settings, health, known)
    try:
        await _unless_stopped(run_all(leadership.keep(), operator.run()), stop)
    finally:
        await operator.close()


async def _unless_stopped(work: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Whether the work came to its end before it was told to."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait([working, stopping], timeout=limits.OPERATOR_STOP_DEADLINE_S)


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, stop)


async def _release(settings: ReleaseSettings) -> None:
    """Whoever ends it in the middle may begin it again."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _leave, 128 + signal.SIGTERM)
    await release(settings)


def main() -> None:
    """Entry point of `tailrace-operator`, and of `tailrace-operator release`."""
    arguments, environment = sys.argv[1:], dict(os.environ)
    work, name = _work(arguments, environment)
    configure_logs()
    forward_logs()
    try:
        asyncio.run(work)
    except StartError as error:
        _end(f"{name} cannot start: {error}")
    except TailraceError as error:
        _end(f"{name} ends: {error}")
    _logger.info("ended")
    _leave(0)


def _work(arguments: list[str], environment: dict[str, str]) -> tuple[Coroutine[Any, Any, None], str]:
    """What the command line asks for, and its name."""
    if arguments[:1] == [RELEASE]:
        return _release(release_settings_of(arguments[1:], environment)), f"tailrace-operator {RELEASE}"
    return _run(settings_of(arguments, environment)), "tailrace-operator"


def _end(line: str) -> None:
    _logger.error("ended", reason=line)
    _leave(1)


def _leave(status: int) -> None:
    """Without waiting for threads: those of requests under way, and kopf's, which takes seconds to end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
