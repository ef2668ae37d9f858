"""What kopf does here: it watches, and tells (design §11, ADR 0015).

kopf runs in a thread with a loop of its own, since at its end it cancels whatever else runs on its loop. It is asked
for plain events only: of what is there at the start, of creations, changes and deletions. Its handlers of changes write
an annotation to every object, and its timers add a finalizer, with which an operator that is away wedges a namespace.
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

Heard = Callable[["Kind", "str | None", "Manifest"], None]

_DOMAIN: Final = "operator.tailrace.io"

_logger = structlog.get_logger()


class WatchEndedError(IllegalStateError):
    """kopf has ended by itself."""


class Watching:
    """kopf in its thread. ``heard`` is called on the loop that runs `run`, with a kind, a change and an object."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str | None,
        kinds: Sequence[tuple[Kind, dict[str, str]]],
        heard: Heard,
    ) -> None:
        self._configuration = configuration
        self._namespace = namespace
        self._kinds = kinds
        self._heard = heard
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            WatchEndedError: kopf ended by itself; its reason is in the message.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def run() -> None:
            reason = "it was stopped"
            try:
                asyncio.run(self._operate(loop))
            except BaseException as error:
                reason = repr(error)
            loop.call_soon_threadsafe(_tell, ended, reason)

        thread = threading.Thread(target=run, name="tailrace-kopf", daemon=True)
        thread.start()
        try:
            raise WatchEndedError(f"kopf has ended by itself: {await ended}")
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
                id=f"heard-{kind.plural}",
                labels=labels or None,
            )(handler)
        return registry

    def _handler(self, loop: asyncio.AbstractEventLoop, kind: Kind) -> Callable[..., Any]:
        async def heard(event: Any, **_: Any) -> None:
            # Whole, as every object outside of lists; nobody changes it.
            manifest = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
            loop.call_soon_threadsafe(self._heard, kind, event["type"], manifest)

        return heard


def _tell(ended: asyncio.Future[str], reason: str) -> None:
    if not ended.done():
        ended.set_result(reason)


class _Backoffs(Iterable[float]):
    """Pauses without an end: a watch waits for an API server that is away, for as long as that takes."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0), itertools.repeat(3.0))


def _settings(kinds: Sequence[tuple[Kind, dict[str, str]]]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # needs to list namespaces and definitions of the whole cluster
    settings.watching.server_timeout = round(limits.OPERATOR_WATCH_S)  # the API server takes whole seconds alone
    settings.watching.client_timeout = limits.OPERATOR_WATCH_S + limits.OPERATOR_WATCH_MARGIN_S
    settings.watching.connect_timeout = limits.KUBERNETES_CALL_DEADLINE_S
    settings.watching.reconnect_backoff = 1.0
    settings.networking.request_timeout = 2 * limits.KUBERNETES_CALL_DEADLINE_S + limits.OPERATOR_WATCH_MARGIN_S
    settings.networking.connect_timeout = limits.KUBERNETES_CALL_DEADLINE_S
    settings.networking.error_backoffs = _Backoffs()
    settings.execution.max_workers = 1  # for handlers that block: there are none
    settings.queueing.worker_limit = limits.OPERATOR_WORKERS
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = None  # the process ends without waiting for this thread
    # Nothing is persisted by handlers of plain events; if it ever is, it is under our own name.
    settings.persistence.finalizer = f"{_DOMAIN}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=_DOMAIN)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=_DOMAIN)
    for kind, labels in kinds:
        if labels:
            selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return settings


def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """How kopf reaches the API: as the official client does. Tokens are read anew when they have changed."""
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
    """Lines of libraries that log in the standard library's way, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        if "signals are ignored" in record.msg:  # they are for the main thread to take
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
    """Let kopf's and asyncio's warnings appear among our lines."""
    logging.captureWarnings(True)
    for name in ("kopf", "asyncio", "urllib3", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [_Forwarding()]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
