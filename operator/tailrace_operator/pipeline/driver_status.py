"""Ask drivers how far they are (docs/pipelines.md#progress). The client blocks, so it runs in a few threads."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

import urllib3

from tailrace.common import limits
from tailrace_operator.cluster.bounded_http import BoundedHttp
from tailrace_operator.kube.manifests import is_time
from tailrace_operator.pipeline import names

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERS: Final = ("batches", "rows", "bytes", "rowsPerSecond", "bytesPerSecond", "lagBytes", "lagSeconds")
_TIMES: Final = ("lastBatchTime",)


class DriverStatus(Protocol):
    """Asks drivers."""

    async def progress(self, address: str) -> Mapping[str, Any] | None:
        """Return what the driver at an IP address has done; None: it does not answer, or not with that."""
        ...


class HttpDriverStatus:
    """Implements DriverStatus."""

    def __init__(self, port: int = names.STATUS_PORT) -> None:
        self._port = port
        self._threads = ThreadPoolExecutor(limits.OPERATOR_PIPELINE_THREADS, thread_name_prefix="tailrace-drivers")

    def close(self) -> None:
        """Stop the threads; calls in progress end at their deadlines."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def progress(self, address: str) -> Mapping[str, Any] | None:
        """See DriverStatus.progress."""
        host = f"[{address}]" if ":" in address else address
        try:
            async with asyncio.timeout(2 * limits.OPERATOR_PIPELINE_STATUS_S):
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, _asked, f"http://{host}:{self._port}/status"
                )
        except TimeoutError:
            return None


def _asked(url: str) -> Mapping[str, Any] | None:
    pool = BoundedHttp(limits.OPERATOR_PIPELINE_STATUS_S, limits.OPERATOR_PIPELINE_STATUS_MAX_BYTES)
    try:
        answer = pool.request("GET", url)
        return understood(json.loads(answer.data)) if answer.status == 200 else None
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        return None  # the driver starts, or is gone; its pod's state says more
    finally:
        pool.close()


def understood(found: object) -> Mapping[str, Any] | None:
    """Return the fields of an answer that the status has, with values that fit; None: it is no answer of a driver."""
    if not isinstance(found, dict):
        return None
    numbers = {name: found[name] for name in _NUMBERS if type(found.get(name)) is int and found[name] >= 0}
    return {**numbers, **{name: found[name] for name in _TIMES if is_time(found.get(name))}}
