"""The Tailrace operator: watch resources, reconcile them and place containers while this process leads (ADR 0013).

A standby observes the workers' Leases and serves the health endpoint. A process that loses its leadership exits at
once, so that two never work at the same time for long.
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
from prometheus_client.core import GaugeMetricFamily

from tailrace.cluster.kubernetes_api import HttpKubernetes
from tailrace.cluster.kubernetes_requests import in_cluster_configuration, kubeconfig_configuration
from tailrace.cluster.prober import HelloProber
from tailrace.common import limits
from tailrace.common.cycle_collector import collect_cycles_rarely
from tailrace.common.errors import StartError, TailraceError
from tailrace.common.http import listen, serve_app
from tailrace.common.logs import configure_logs
from tailrace.common.process_exit import stop_on_signals
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.task_groups import run_all, running
from tailrace_operator.cluster.names import MANAGED, controller_uri
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.cluster.reconcile import StreamClusterReconciler
from tailrace_operator.cluster.state import fields_for_dependents, watched_fields
from tailrace_operator.cluster.tier2 import MinioProbe
from tailrace_operator.connections.controllers import ClusterName, Controllers
from tailrace_operator.kube.handlers import KopfWatch, forward_logs
from tailrace_operator.kube.leader_election import LeaderElection
from tailrace_operator.kube.objects import (
    DEPLOYMENTS,
    JOBS,
    PIPELINES,
    STATEFUL_SETS,
    STREAM_CLUSTERS,
    HttpObjects,
)
from tailrace_operator.pipeline.driver_status import HttpDriverStatus
from tailrace_operator.pipeline.reconcile import PipelineReconciler
from tailrace_operator.readergroup.reconcile import ReaderGroupReconciler
from tailrace_operator.reconcile.keys import Key, cluster_of, endpoint_of, owner_of
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.runtime.health import Health
from tailrace_operator.runtime.installed_kinds import InstalledKinds
from tailrace_operator.runtime.metrics import metrics_of_groups, metrics_of_loop
from tailrace_operator.runtime.standby import Standby
from tailrace_operator.stream.reconcile import StreamReconciler
from tailrace_operator.uninstall.namespace_teardown import release_namespace_finalizers
from tailrace_operator.uninstall.release_command import NAME as RELEASE
from tailrace_operator.uninstall.release_command import release, release_settings_of
from tailrace_operator.uninstall.uninstaller import KINDS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from prometheus_client import Metric

    from tailrace.cluster.failure import FailureDetector
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.cluster.kubernetes_requests import Configuration
    from tailrace_operator.uninstall.release_command import ReleaseSettings

IMAGE_VARIABLE: Final = "TAILRACE_IMAGE"
SPARK_IMAGE_VARIABLE: Final = "TAILRACE_SPARK_IMAGE"
POD_VARIABLE: Final = "POD_NAME"

_logger = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Options of the command line and the environment. ``namespace``: of the operator's own Lease."""

    namespace: str
    all_namespaces: bool
    kubeconfig: str | None
    image: str
    spark_image: str | None
    identity: str
    health_host: str
    health_port: int
    cluster_period_s: float

    @property
    def served(self) -> str | None:
        """Return the served namespace; None: all."""
        return None if self.all_namespaces else self.namespace

    def configuration(self) -> Configuration:
        """Return a new configuration of the Kubernetes client. Raises StartError."""
        return kubeconfig_configuration(self.kubeconfig) if self.kubeconfig else in_cluster_configuration()


def settings_of(arguments: Sequence[str], environment: dict[str, str]) -> Settings:
    """Parse the command line. As argparse does, exit the process when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="tailrace-operator",
        description=__doc__.partition("\n")[0],
        epilog=f"To uninstall an operator, see `tailrace-operator {RELEASE} --help`.",
    )
    parser.add_argument("--namespace", required=True, help="namespace of the operator, which it also serves")
    parser.add_argument("--all-namespaces", action="store_true", help="serve all namespaces")
    parser.add_argument("--kubeconfig", help="kubeconfig file, for use outside a pod")
    parser.add_argument(
        "--image",
        default=environment.get(IMAGE_VARIABLE),
        help=f"image of pods whose StreamCluster names none (default: ${IMAGE_VARIABLE})",
    )
    parser.add_argument(
        "--spark-image",
        default=environment.get(SPARK_IMAGE_VARIABLE),
        help=f"image of Pipelines that name none; without it none run (default: ${SPARK_IMAGE_VARIABLE})",
    )
    parser.add_argument("--health-host", default="0.0.0.0", help="address of the health and metrics endpoint")
    parser.add_argument("--health-port", type=int, default=limits.OPERATOR_HEALTH_PORT)
    parser.add_argument(
        "--cluster-period",
        type=float,
        default=limits.OPERATOR_CLUSTER_PERIOD_S,
        help="seconds after which an unchanged StreamCluster is reconciled again (default: %(default)g)",
    )
    found = parser.parse_args(arguments)
    if not found.image:
        parser.error(f"--image or the variable {IMAGE_VARIABLE} must name the image of the pods")
    if found.cluster_period < limits.OPERATOR_PERIOD_MIN_S:
        parser.error(f"--cluster-period must be at least {limits.OPERATOR_PERIOD_MIN_S:g} s")
    suffix = SystemEntropy().token(4).hex()
    return Settings(
        namespace=found.namespace,
        all_namespaces=found.all_namespaces,
        kubeconfig=found.kubeconfig,
        image=found.image,
        spark_image=found.spark_image or None,
        identity=f"{environment.get(POD_VARIABLE) or os.uname().nodename}-{suffix}",
        health_host=found.health_host,
        health_port=found.health_port,
        cluster_period_s=found.cluster_period,
    )


class Operator:
    """Everything that runs while this process leads."""

    def __init__(self, settings: Settings, health: Health, detectors: dict[tuple[str, str], FailureDetector]) -> None:
        self._settings = settings
        self._health = health
        self._apis: dict[str, HttpKubernetes] = {}
        self._objects = HttpObjects(settings.configuration(), settings.identity)
        self._kinds = InstalledKinds(self._objects, settings.served)
        self._probe = MinioProbe()
        self._controllers = Controllers(self._objects, uri=_controller_uri)
        self._placements = Placements(self._api_of, HelloProber(), self._close_api, detectors, self._on_homes_changed)
        self._loop = ReconcileLoop(self._objects, settings.served, SystemClock(), SystemEntropy())
        clusters = StreamClusterReconciler(
            self._objects,
            self._probe,
            self._placements,
            SystemClock(),
            image=settings.image,
            namespace=settings.served,
            period_s=settings.cluster_period_s,
        )
        self._loop.add(clusters, watched_fields, group_of=endpoint_of, heard=clusters.heard)
        known = self._loop.list_known
        streams = StreamReconciler(self._objects, self._controllers, SystemClock(), known)
        self._loop.add(streams, depends_on=cluster_of)
        self._groups = ReaderGroupReconciler(self._objects, self._controllers, SystemClock(), known)
        self._loop.add(self._groups, depends_on=cluster_of)
        self._drivers = HttpDriverStatus()
        image = settings.spark_image
        self._pipelines = PipelineReconciler(self._objects, self._probe, self._drivers, SystemClock(), image)
        self._loop.add(self._pipelines, depends_on=cluster_of)
        self._loop.add_dependency(STREAM_CLUSTERS, fields_for_dependents, self._on_cluster_changed)

    async def run(self) -> None:
        """Work until cancelled. Raises TailraceError: a part that must not stop has stopped.

        Placers need StreamClusters only, so they do not wait for other kinds.
        """
        self._health.liveness_problem = self._loop.liveness_problem
        self._health.missing_kinds = self._kinds.missing
        self._health.metrics = self._metrics
        await self._kinds.wait_for(STREAM_CLUSTERS)
        present = [kind for kind in self._loop.kinds if kind is STREAM_CLUSTERS or await self._kinds.has(kind)]
        managed = [STATEFUL_SETS, DEPLOYMENTS, *([] if self._settings.spark_image is None else [JOBS])]
        later = [kind for kind in self._loop.kinds if kind not in present]
        try:
            await run_all(self._serve(present, managed), *(self._serve_later(kind) for kind in later))
        finally:
            await self._placements.close()

    async def _serve(self, kinds: Sequence[Kind], managed: Sequence[Kind] = ()) -> None:
        """Watch and reconcile resources of these kinds. They are installed: kopf watches no others."""
        watched: list[tuple[Kind, dict[str, str]]] = [(kind, {}) for kind in kinds]
        watched += [(kind, dict(MANAGED)) for kind in managed]
        watching = KopfWatch(self._settings.configuration(), self._settings.served, watched, self._on_event)
        await run_all(watching.run(), self._loop.run(kinds))

    async def _serve_later(self, kind: Kind) -> None:
        """Do the same for a kind once it is installed."""
        await self._kinds.wait_for(kind)
        await self._serve([kind])

    async def close(self) -> None:
        """Close all connections."""
        await self._controllers.close()
        self._probe.close()
        self._drivers.close()
        self._objects.close()
        for api in self._apis.values():
            await api.close()

    def _on_event(self, kind: Kind, change: str | None, manifest: Manifest) -> None:
        if kind in (STATEFUL_SETS, DEPLOYMENTS, JOBS):
            if kind is JOBS:
                self._pipelines.heard_job(manifest)
            owner = owner_of(manifest, STREAM_CLUSTERS) or owner_of(manifest, PIPELINES)
            if owner is not None:
                self._loop.child_changed(owner)
        else:
            self._loop.on_event(kind, change, manifest)

    def _on_homes_changed(self, namespace: str, cluster: str) -> None:
        self._loop.child_changed(Key(STREAM_CLUSTERS.plural, namespace, cluster))

    def _on_cluster_changed(self, key: Key) -> None:
        cluster = ClusterName(key.namespace, key.name)
        self._controllers.invalidate(cluster)
        self._groups.invalidate(cluster)

    def _api_of(self, namespace: str) -> HttpKubernetes:
        if namespace not in self._apis:
            self._apis[namespace] = HttpKubernetes(self._settings.configuration(), namespace)
        return self._apis[namespace]

    async def _close_api(self, namespace: str) -> None:
        """Close the connections of a namespace in which no cluster is left."""
        api = self._apis.pop(namespace, None)
        if api is not None:
            await api.close()

    def _metrics(self) -> Iterator[Metric]:
        about = "StreamClusters with a placer"
        yield GaugeMetricFamily("tailrace_operator_clusters_placed", about, value=len(self._placements))
        about = "Kinds of resources that the API server does not have, or does not let the operator list"
        yield GaugeMetricFamily("tailrace_operator_kinds_missing", about, value=len(self._kinds.missing))
        yield from metrics_of_loop(self._loop)
        yield from metrics_of_groups(self._groups.lag.samples())


def _controller_uri(cluster: ClusterName) -> str:
    return controller_uri(cluster.name, cluster.namespace)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until `stop` is set. Raises TailraceError: the process must exit; the message is the line to show."""
    health = Health()
    async with contextlib.AsyncExitStack() as stack:
        listener = listen("health", settings.health_host, settings.health_port)
        port = listener.getsockname()[1]
        await stack.enter_async_context(serve_app(health.app(), listener))
        _logger.info("started", namespace=settings.served or "all", health_port=port, identity=settings.identity)
        api = HttpKubernetes(settings.configuration(), settings.namespace)
        stack.push_async_callback(api.close)
        leadership = LeaderElection(api, settings.identity, SystemClock())
        health.ready = True
        try:
            detectors: dict[tuple[str, str], FailureDetector] = {}
            if await _unless_stopped(_run_as_standby(settings, leadership, detectors), stop):
                health.leads = True
                await _run_as_leader(settings, health, leadership, detectors, stop)
        finally:
            health.leads = False
            if stop.is_set():
                await _tear_down(settings)
            await leadership.release()  # after everything else has stopped, so that the next leader is alone


async def _run_as_standby(
    settings: Settings, leadership: LeaderElection, detectors: dict[tuple[str, str], FailureDetector]
) -> None:
    """Wait until this process leads. Fill `detectors` with what it observed of the workers meanwhile."""
    # Workers are throttled, too: what is not answered at once says nothing of their silence.
    objects = HttpObjects(settings.configuration(), settings.identity, attempts=1)
    standby = Standby(objects, settings.served)
    try:
        async with running(standby.run()):
            await leadership.acquire()
        detectors.update(standby.detectors)
    finally:
        objects.close()


async def _tear_down(settings: Settings) -> None:
    """Release the namespace's resources. Standbys do so, too, because any pod may lose its rights first."""
    objects = HttpObjects(settings.configuration(), settings.identity)
    try:
        await release_namespace_finalizers(objects, KINDS, settings.namespace, SystemClock())
    finally:
        objects.close()


async def _run_as_leader(
    settings: Settings,
    health: Health,
    leadership: LeaderElection,
    detectors: dict[tuple[str, str], FailureDetector],
    stop: asyncio.Event,
) -> None:
    operator = Operator(settings, health, detectors)
    try:
        await _unless_stopped(run_all(leadership.keep(), operator.run()), stop)
    finally:
        await operator.close()


async def _unless_stopped(work: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Return whether the work completed before `stop` was set; cancel it otherwise."""
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
    await serve(settings, stop_on_signals())


async def _release(settings: ReleaseSettings) -> None:
    """Run the command `release`. It can be repeated after SIGTERM."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _exit, 128 + signal.SIGTERM)
    await release(settings)


def main() -> None:
    """Entry point of `tailrace-operator`, and of `tailrace-operator release`."""
    arguments, environment = sys.argv[1:], dict(os.environ)
    work, name = _work(arguments, environment)
    configure_logs()
    forward_logs()
    collect_cycles_rarely()
    try:
        asyncio.run(work)
    except StartError as error:
        _exit_with_error(f"{name} cannot start: {error}")
    except TailraceError as error:
        _exit_with_error(f"{name} stopped: {error}")
    _logger.info("ended")
    _exit(0)


def _work(arguments: list[str], environment: dict[str, str]) -> tuple[Coroutine[Any, Any, None], str]:
    """Return the command that the command line names, and how messages call it."""
    if arguments[:1] == [RELEASE]:
        return _release(release_settings_of(arguments[1:], environment)), f"tailrace-operator {RELEASE}"
    return _run(settings_of(arguments, environment)), "tailrace-operator"


def _exit_with_error(line: str) -> None:
    _logger.error("ended", reason=line)
    _exit(1)


def _exit(status: int) -> None:
    """Exit without waiting for threads: those of requests in progress, and kopf's, which takes seconds to stop."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
