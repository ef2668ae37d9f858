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
from tailrace.common.errors import NotFoundError, TailraceError
from tailrace_operator.reconciling import FINALIZER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace_operator.objects import Objects

_logger = structlog.get_logger()


async def release_namespace(objects: Objects, kinds: Sequence[Kind], namespace: str) -> None:
    """Take the finalizer off everything in the namespace, if that is being deleted.

    What fails is told in the log: the process ends, whatever comes of it. Call it when nothing reconciles any more.
    """
    try:
        async with asyncio.timeout(limits.OPERATOR_PARTING_DEADLINE_S):
            if not await objects.namespace_ends(namespace):
                return
            for kind in kinds:
                for manifest in await objects.list(kind, namespace):
                    await _release(objects, kind, manifest)
    except TimeoutError:
        _logger.error("not_all_released", namespace=namespace, seconds=limits.OPERATOR_PARTING_DEADLINE_S)
    except TailraceError as error:
        _logger.error("not_all_released", namespace=namespace, reason=str(error))


async def _release(objects: Objects, kind: Kind, manifest: Manifest) -> None:
    metadata = manifest["metadata"]
    finalizers = list(metadata.get("finalizers") or [])
    if FINALIZER not in finalizers:
        return
    try:
        await objects.set_finalizers(kind, manifest, [item for item in finalizers if item != FINALIZER])
        _logger.info("released", kind=kind.kind, namespace=metadata["namespace"], name=metadata["name"])
    except NotFoundError:
        return
    except TailraceError as error:  # the others' turn comes all the same
        _logger.error("not_released", kind=kind.kind, name=metadata["name"], reason=str(error))
