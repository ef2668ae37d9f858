"""Watch objects with kopf, and report each event to a callback (docs/design.md#resources, ADR 0015).

kopf runs in a thread with its own event loop, because at its end it cancels every task of its loop. Only its plain
event handlers are used: for existing objects, creations, changes and deletions. Its change handlers would write an
annotation to every object. Its timers would add a finalizer, which blocks the deletion of a namespace while no operator
runs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import kopf
import structlog

from tailrace.common import limits
from tailrace.common.errors import IllegalStateError

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.cluster.kubernetes_requests import Configuration

EventCallback = Callable[["Kind", "str | None", "Manifest"], None]

_DOMAIN: Final = "operator.tailrace.io"

_logger = structlog.get_logger()


class WatchEndedError(IllegalStateError):
    """kopf has stopped although it was not asked to."""


class KopfWatch:
    """kopf in its thread. ``on_event`` is called on the event loop of `run`, with a kind, a change and an object."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str | None,
        kinds: Sequence[tuple[Kind, dict[str, str]]],
        on_event: EventCallback,
    ) -> None:
        self._configuration = configuration
        self._namespace = namespace
        self._kinds = kinds
        self._on_event = on_event
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            WatchEndedError: kopf has stopped; the message gives its reason.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def run() -> None:
            reason = "it was stopped"
            try:
                asyncio.run(self._operate(loop))
            except BaseException as error:
                reason = repr(error)
            loop.call_soon_threadsafe(_set_reason, ended, reason)

        thread = threading.Thread(target=run, name="tailrace-kopf", daemon=True)
        thread.start()
        try:
            raise WatchEndedError(f"the watch of Kubernetes objects has stopped: {await ended}")
        finally:
            self._stop.set()

    async def _operate(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await kopf.operator(
                registry=self._registry(loop),
                settings=_settings(self._kinds),
                standalone=True,
                stop_flag=self._stop,
                clusterwide=self._namespace is None,
                namespaces=[] if self._namespace is None else [self._namespace],
            )
        finally:
            self._stop.set()  # a thread of kopf's waits for it

    def _registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        def login(**_: Any) -> kopf.ConnectionInfo:
            return connection_info(self._configuration)

        kopf.on.login(registry=registry)(login)
        for kind, labels in self._kinds:
            handler = self._handler(loop, kind)
            kopf.on.event(
                kind.group,
                kind.version,
                kind.plural,
                registry=registry,
                id=f"watch-{kind.plural}",
                labels=labels or None,
            )(handler)
        return registry

    def _handler(self, loop: asyncio.AbstractEventLoop, kind: Kind) -> Callable[..., Any]:
        async def on_event(event: Any, **_: Any) -> None:
            # With apiVersion and kind, which items of lists lack. The manifest is not changed after this.
            manifest = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
            loop.call_soon_threadsafe(self._on_event, kind, event["type"], manifest)

        return on_event


def _set_reason(ended: asyncio.Future[str], reason: str) -> None:
    if not ended.done():
        ended.set_result(reason)


class _Backoffs(Iterable[float]):
    """An endless series of pauses: a watch retries until the API server answers again."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0), itertools.repeat(3.0))


def _settings(kinds: Sequence[tuple[Kind, dict[str, str]]]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # scanning lists namespaces and definitions of the whole cluster
    settings.watching.server_timeout = round(limits.OPERATOR_WATCH_S)  # the API server accepts whole seconds only
    settings.watching.client_timeout = limits.OPERATOR_WATCH_S + limits.OPERATOR_WATCH_MARGIN_S
    settings.watching.connect_timeout = limits.KUBERNETES_CALL_DEADLINE_S
    settings.watching.reconnect_backoff = 1.0
    settings.networking.request_timeout = 2 * limits.KUBERNETES_CALL_DEADLINE_S + limits.OPERATOR_WATCH_MARGIN_S
    settings.networking.connect_timeout = limits.KUBERNETES_CALL_DEADLINE_S
    settings.networking.error_backoffs = _Backoffs()
    settings.execution.max_workers = 1  # for blocking handlers, of which there are none
    settings.queueing.worker_limit = limits.OPERATOR_WATCH_WORKERS
    # For so long an object that has changed takes a worker: with all of them, changes of others are not heard.
    settings.queueing.idle_timeout = limits.OPERATOR_WATCH_IDLE_S
    settings.process.ultimate_exiting_timeout = None  # the process ends without waiting for this thread
    # Plain event handlers persist nothing. If kopf ever does, it uses our own names.
    settings.persistence.finalizer = f"{_DOMAIN}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=_DOMAIN)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=_DOMAIN)
    for kind, labels in kinds:
        if labels:
            selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return settings


def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return how kopf connects to the API, as the official client does. Changed tokens are read again."""
    authorization = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (authorization or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=str(configuration.host),
        ca_path=configuration.ssl_ca_cert or None,
        ca_data=None if configuration.ssl_ca_cert else configuration.ca_cert_data or None,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file or None,
        private_key_path=configuration.key_file or None,
        scheme=scheme or None,
        token=token or None,
    )


class _Forwarding(logging.Handler):
    """Forwards records of the standard library's logging to the structured log."""

    def emit(self, record: logging.LogRecord) -> None:
        if "signals are ignored" in record.msg:  # the main thread handles signals
            return
        error = record.exc_info[1] if record.exc_info else None
        _logger.log(
            record.levelno,
            "library",
            logger=record.name,
            message=record.getMessage(),
            **({"error": repr(error)} if error is not None else {}),
        )


def forward_logs() -> None:
    """Forward warnings of kopf, asyncio and urllib3 to the structured log."""
    logging.captureWarnings(True)
    for name in ("kopf", "asyncio", "urllib3", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [_Forwarding()]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
