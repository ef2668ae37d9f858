"""A placer in a process of its own, as the operator runs one: ``python placer.py NAMESPACE CLUSTER KUBECONFIG CALM_S``.

``CALM_S``: for how many seconds it leaves an uneven map unchanged after a failure.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import structlog

from tailrace.cluster.kubernetes_api import from_kubeconfig
from tailrace.cluster.placer import Placer
from tailrace.cluster.prober import HelloProber


async def place(namespace: str, cluster: str, kubeconfig: str, calm_s: str) -> None:
    """Place containers until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    api = from_kubeconfig(namespace, kubeconfig)
    placing = asyncio.ensure_future(Placer(api, cluster, HelloProber(), float(calm_s)).run())
    await stop.wait()
    placing.cancel()
    await asyncio.gather(placing, return_exceptions=True)
    await api.close()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(place(*sys.argv[1:]))
