"""Remove the operator's finalizers when its own namespace is being deleted.

Kubernetes deletes the pods of a namespace first and its Roles later (in this order since 1.33). Resources with the
operator's finalizer would then never be deleted, because no operator runs. Their streams are kept, like everything in
the object store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import TailraceError
from tailrace_operator.uninstall.finalizer_release import FinalizerRelease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cluster.kubernetes import Kind
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.objects import Objects

_logger = structlog.get_logger()


async def release_namespace_finalizers(objects: Objects, kinds: Sequence[Kind], namespace: str, clock: Clock) -> None:
    """Remove the finalizer from all resources of the namespace, if it is being deleted.

    Call it after reconciling has stopped. Failures are only logged, because the process exits in any case. No Events
    are created, because a namespace that is being deleted accepts no new objects.
    """
    release = FinalizerRelease(objects, kinds, namespace, clock)
    try:
        async with asyncio.timeout(limits.OPERATOR_NAMESPACE_TEARDOWN_DEADLINE_S):
            if not await objects.namespace_is_terminating(namespace):
                return
            count = await release.run_until_done()
            _logger.info("namespace_released", namespace=namespace, resources=count)
    except TimeoutError:
        _logger.error("not_all_released", namespace=namespace, reason=release.state)
    except TailraceError as error:
        _logger.error("not_all_released", namespace=namespace, reason=str(error))
