"""Which of the operator's processes is active: one Lease, taken by compare-and-swap (ADR 0013).

Time inside the Lease is for people. A standby counts the time without an observed renewal on its own clock, since its
own (re)connection to the API; the leader counts the time since it *began* its last successful renewal, and ends well
before a standby may take over. Two that believe to lead for a moment do no harm: all that they write compares versions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from tailrace.cluster.kubernetes import LEASES
from tailrace.cluster.leases import micro_time
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    IllegalStateError,
    NotFoundError,
    UnavailableError,
    WriteConflictError,
)

if TYPE_CHECKING:
    from typing import NoReturn

    from tailrace.cluster.kubernetes import KubernetesApi, Manifest
    from tailrace.common.ports import Clock

LEASE_NAME: Final = "tailrace-operator"

_logger = structlog.get_logger()


class LeadershipLostError(IllegalStateError):
    """The Lease is another's, or could not be renewed in time: the process must end."""


class Leadership:
    """The Lease as one process sees it. ``identity`` is of this process alone."""

    def __init__(self, api: KubernetesApi, identity: str, clock: Clock) -> None:
        self._api = api
        self._identity = identity
        self._clock = clock
        self._held: Manifest | None = None
        self._tried = False
        """The Lease may be this process's."""
        self._renewed_s = 0.0
        """When the request began that renewed it last."""
        self._seen: tuple[Any, Any] | None = None
        """Holder and time in the Lease as they were seen last; None: not since the connection began."""
        self._seen_s = 0.0

    async def acquire(self) -> None:
        """Wait until this process leads."""
        told = ""
        while True:
            holder = await self._try()
            if holder is None:
                _logger.info("leading", lease=LEASE_NAME, identity=self._identity)
                return
            if holder != told:
                _logger.info("standing_by", lease=LEASE_NAME, identity=self._identity, leader=holder)
                told = holder
            await asyncio.sleep(limits.LEADER_RENEW_S)

    async def keep(self) -> NoReturn:
        """Renew until it cannot be done any more.

        Raises:
            LeadershipLostError: another process leads, or nothing could be renewed for ``limits.LEADER_DEADLINE_S``.
        """
        loop = asyncio.get_running_loop()
        reason = "nobody answered"
        while True:
            try:
                async with asyncio.timeout_at(self._renewed_s + limits.LEADER_DEADLINE_S):
                    await asyncio.sleep(max(0.0, self._renewed_s + limits.LEADER_RENEW_S - loop.time()))
                    while True:
                        try:
                            await self._renew()
                            break
                        except (UnavailableError, WriteConflictError, AlreadyExistsError, NotFoundError) as error:
                            reason = str(error)
                        await asyncio.sleep(limits.LEADER_RENEW_S / 4)
            except TimeoutError:
                raise LeadershipLostError(
                    f"Lease {LEASE_NAME} could not be renewed for {limits.LEADER_DEADLINE_S:g} s: {reason}"
                ) from None

    async def release(self) -> None:
        """Let go, so that a standby need not wait. What fails is left to time."""
        if not self._tried:
            return
        try:
            found = await self._api.get(LEASES, LEASE_NAME)  # it may be ours although the answer was not waited for
            if (found.get("spec") or {}).get("holderIdentity") == self._identity:
                await self._api.replace(LEASES, self._changed(found, ""))
        except (UnavailableError, WriteConflictError, NotFoundError) as error:
            _logger.info("lease_not_released", lease=LEASE_NAME, reason=str(error))

    async def _try(self) -> str | None:
        """None: this process leads; else who does, as far as it is known."""
        began_s = asyncio.get_running_loop().time()
        try:
            found = await self._api.get(LEASES, LEASE_NAME)
        except NotFoundError:
            return await self._take(None, began_s)
        except UnavailableError as error:
            self._seen = None
            return f"unknown: {error}"
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):  # ours: a write of this process whose answer was lost
            return await self._take(found, began_s)
        seen = (holder, spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_s = seen, began_s
        if began_s - self._seen_s < limits.LEADER_LAPSE_S:
            return str(holder)
        _logger.warning("leader_is_silent", lease=LEASE_NAME, leader=holder, silent_s=round(began_s - self._seen_s, 1))
        return await self._take(found, began_s)

    async def _take(self, found: Manifest | None, began_s: float) -> str | None:
        self._tried = True
        try:
            self._held = await self._write(found)
        except (UnavailableError, WriteConflictError, AlreadyExistsError, NotFoundError) as error:
            self._seen = None
            return f"unknown: {error}"
        self._renewed_s = began_s
        return None

    async def _renew(self) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            self._held = await self._write(self._held)
        except (WriteConflictError, NotFoundError, AlreadyExistsError):
            self._held = await self._still_held()
            raise
        self._renewed_s = began_s

    async def _still_held(self) -> Manifest | None:
        """The Lease as it is now, after somebody changed it. Raises LeadershipLostError: it is another's."""
        try:
            found = await self._api.get(LEASES, LEASE_NAME)
        except NotFoundError:
            return None
        holder = (found.get("spec") or {}).get("holderIdentity") or ""
        if holder not in ("", self._identity):
            raise LeadershipLostError(f"Lease {LEASE_NAME} was taken by {holder}")
        return found

    async def _write(self, found: Manifest | None) -> Manifest:
        if found is None:
            return await self._api.create(LEASES, self._changed({"metadata": {"name": LEASE_NAME}}, self._identity))
        return await self._api.replace(LEASES, self._changed(found, self._identity))

    def _changed(self, found: Manifest, holder: str) -> Manifest:
        spec = dict(found.get("spec") or {})
        now = micro_time(self._clock.now_ms())
        if spec.get("holderIdentity") != holder and holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec |= {"holderIdentity": holder, "renewTime": now, "leaseDurationSeconds": round(limits.LEADER_LAPSE_S)}
        metadata = dict(found["metadata"])
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
