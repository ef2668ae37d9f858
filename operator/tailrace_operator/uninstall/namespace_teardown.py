"""What the operator does at its end when the namespace that it runs in is being deleted.

A namespace that is deleted loses its pods first and its rights later (ordered since Kubernetes 1.33). Resources whose
finalizer is this operator's would then wait for ever for somebody who is gone: so it lets go of them. Their streams
stay, as everything in the object store does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import TailraceError
from tailrace_operator.uninstall.finalizer_release import Releasing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cluster.kubernetes import Kind
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.objects import Objects

_logger = structlog.get_logger()


async def release_namespace(objects: Objects, kinds: Sequence[Kind], namespace: str, clock: Clock) -> None:
    """Take the finalizer off everything in the namespace, if that is being deleted.

    What fails is told in the log: the process ends, whatever comes of it. Call it when nothing reconciles any more. No
    Events are made: a namespace that goes takes no new objects.
    """
    releasing = Releasing(objects, kinds, namespace, clock)
    try:
        async with asyncio.timeout(limits.OPERATOR_PARTING_DEADLINE_S):
            if not await objects.namespace_ends(namespace):
                return
            count = await releasing.until_clean()
            _logger.info("namespace_released", namespace=namespace, resources=count)
    except TimeoutError:
        _logger.error("not_all_released", namespace=namespace, reason=releasing.state)
    except TailraceError as error:
        _logger.error("not_all_released", namespace=namespace, reason=str(error))
