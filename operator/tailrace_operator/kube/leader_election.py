"""Leader election: one Lease, acquired by compare-and-swap (ADR 0013).

The times inside the Lease are for people only. A standby measures on its own clock how long it has observed no renewal,
since it (re)connected to the API. The leader measures since it *began* its last successful renewal, and exits well
before a standby may acquire the Lease. Two processes that believe to lead for a moment do no harm, because all their
writes compare versions.
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
    """Another process holds the Lease, or it could not be renewed in time. The process must exit."""


class LeaderElection:
    """Acquires, renews and releases the Lease for one process. ``identity`` is unique to the process."""

    def __init__(self, api: KubernetesApi, identity: str, clock: Clock) -> None:
        self._api = api
        self._identity = identity
        self._clock = clock
        self._held: Manifest | None = None
        self._may_hold = False
        """Whether this process may hold the Lease."""
        self._renewed_s = 0.0
        """When the request of the last successful renewal began."""
        self._observed: tuple[Any, Any] | None = None
        """Holder and renew time as last observed; None: not observed since the connection began."""
        self._observed_s = 0.0

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        last_holder = ""
        while True:
            holder = await self._try_acquire()
            if holder is None:
                _logger.info("leading", lease=LEASE_NAME, identity=self._identity)
                return
            if holder != last_holder:
                _logger.info("standing_by", lease=LEASE_NAME, identity=self._identity, leader=holder)
                last_holder = holder
            await asyncio.sleep(limits.LEADER_RENEW_S)

    async def keep(self) -> NoReturn:
        """Renew the Lease until that fails.

        Raises:
            LeadershipLostError: another process leads, or no renewal succeeded for ``limits.LEADER_DEADLINE_S``.
        """
        loop = asyncio.get_running_loop()
        reason = "the API server did not answer"
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
                    f"Lease {LEASE_NAME} has not been renewed for {limits.LEADER_DEADLINE_S:g} s: {reason}"
                ) from None

    async def release(self) -> None:
        """Release the Lease, so that a standby need not wait. After a failure the Lease expires by itself."""
        if not self._may_hold:
            return
        try:
            found = await self._api.get(LEASES, LEASE_NAME)  # it may be ours although its answer was never received
            if (found.get("spec") or {}).get("holderIdentity") == self._identity:
                await self._api.replace(LEASES, self._changed(found, ""))
        except (UnavailableError, WriteConflictError, NotFoundError) as error:
            _logger.info("lease_not_released", lease=LEASE_NAME, reason=str(error))

    async def _try_acquire(self) -> str | None:
        """Try once to acquire the Lease. Return its holder, if known; None: this process leads."""
        began_s = asyncio.get_running_loop().time()
        try:
            found = await self._api.get(LEASES, LEASE_NAME)
        except NotFoundError:
            return await self._take(None, began_s)
        except UnavailableError as error:
            self._observed = None
            return f"unknown: {error}"
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):  # ours: the answer to an earlier write was lost
            return await self._take(found, began_s)
        observed = (holder, spec.get("renewTime"))
        if observed != self._observed:
            self._observed, self._observed_s = observed, began_s
        if began_s - self._observed_s < limits.LEADER_LAPSE_S:
            return str(holder)
        _logger.warning(
            "leader_not_renewing", lease=LEASE_NAME, leader=holder, silent_s=round(began_s - self._observed_s, 1)
        )
        return await self._take(found, began_s)

    async def _take(self, found: Manifest | None, began_s: float) -> str | None:
        self._may_hold = True
        try:
            self._held = await self._write(found)
        except (UnavailableError, WriteConflictError, AlreadyExistsError, NotFoundError) as error:
            self._observed = None
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
        """Return the current Lease after a conflict. Raises LeadershipLostError: another process holds it."""
        try:
            found = await self._api.get(LEASES, LEASE_NAME)
        except NotFoundError:
            return None
        holder = (found.get("spec") or {}).get("holderIdentity") or ""
        if holder not in ("", self._identity):
            raise LeadershipLostError(f"Lease {LEASE_NAME} was acquired by {holder}")
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
