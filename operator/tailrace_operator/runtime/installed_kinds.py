"""Find out which kinds of resources the API server has, because definitions may come after the operator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind
    from tailrace_operator.kube.objects import Objects

_logger = structlog.get_logger()


class InstalledKinds:
    """Kinds that the operator can list in one namespace, or (None) in all."""

    def __init__(self, objects: Objects, namespace: str | None) -> None:
        self._objects = objects
        self._namespace = namespace
        self.missing: dict[str, str] = {}
        """Kinds that could not be listed when they were asked for last, and why."""

    async def has(self, kind: Kind) -> bool:
        """Return whether the kind can be listed now."""
        try:
            await self._objects.page(kind, self._namespace)
        except TailraceError as error:
            if self.missing.get(kind.kind) != str(error):
                _logger.warning("kind_not_installed", kind=kind.kind, reason=str(error))
            self.missing[kind.kind] = str(error)
            return False
        self.missing.pop(kind.kind, None)
        return True

    async def wait_for(self, kind: Kind) -> None:
        """Wait until the kind can be listed."""
        while not await self.has(kind):  # noqa: ASYNC110
            await asyncio.sleep(limits.OPERATOR_KINDS_RETRY_S)
