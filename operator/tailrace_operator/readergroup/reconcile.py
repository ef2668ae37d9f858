"""Reconcile a ReaderGroup: create, update, measure and delete its group (docs/design.md#resources, ADR 0014).

The id of a group is the uid of the resource that created it. A group that an application or a deleted resource created
belongs to the oldest of the resources that name it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from typing import TYPE_CHECKING

from tailrace.client.group.stream_cuts import complete_cuts
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    BadRequestError,
    DataError,
    IllegalStateError,
    InvalidSpecError,
    NoSuchReaderGroupError,
    NoSuchStreamError,
)
from tailrace.common.task_groups import run_all
from tailrace_operator.connections.controllers import ClusterName, ClusterState
from tailrace_operator.kube.manifests import Notice, has_finalizer, is_deleted
from tailrace_operator.kube.objects import READER_GROUPS
from tailrace_operator.readergroup import conditions, retention
from tailrace_operator.readergroup.deletion import delete_group
from tailrace_operator.readergroup.lag_tracker import LagTracker, TrackedGroup
from tailrace_operator.readergroup.ownership import belongs_to
from tailrace_operator.readergroup.plan import differences, digest_field, is_edited, publishes, wanted_config
from tailrace_operator.reconcile.outcome import Condition, Outcome
from tailrace_operator.schema.specs import ReaderGroupSpec

if TYPE_CHECKING:
    from tailrace.client.async_client import Client
    from tailrace.client.model import ReaderGroupConfig
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace.common.stream_cut import StreamCut
    from tailrace_operator.connections.controllers import Controllers
    from tailrace_operator.kube.objects import ListObjects, Objects
    from tailrace_operator.readergroup.measure import Sample


class ReaderGroupReconciler:
    """Implements Reconciler for ReaderGroups. ``list_known``: lists what may be late; None: ``objects`` does."""

    def __init__(
        self, objects: Objects, controllers: Controllers, clock: Clock, list_known: ListObjects | None = None
    ) -> None:
        self._clock = clock
        self._list_known = list_known or objects.list
        self._objects = objects
        self._controllers = controllers
        self.lag = LagTracker(controllers)
        """Measures the lag of all groups."""

    def invalidate(self, cluster: ClusterName) -> None:
        """Discard the samples of a changed cluster."""
        self.lag.invalidate(cluster)

    @property
    def kind(self) -> Kind:
        """See Reconciler.kind."""
        return READER_GROUPS

    @property
    def period_s(self) -> float:
        """See Reconciler.period_s."""
        return limits.OPERATOR_LAG_PERIOD_S

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        """See Reconciler.away."""
        try:
            spec = ReaderGroupSpec.parse(manifest)
        except InvalidSpecError:
            return ()
        return conditions.away(subscribes=publishes(spec))

    async def gone(self, namespace: str, name: str) -> None:
        """See Reconciler.gone."""
        self.lag.forget_everywhere(_resource(namespace, name))

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """See Reconciler.reconcile."""
        if is_deleted(manifest):
            return await delete_group(self._objects, self._controllers, manifest)
        try:
            spec = ReaderGroupSpec.parse(manifest)
        except InvalidSpecError as error:
            return conditions.refused("InvalidSpec", f"{error}.")
        deletes = spec.deletion_policy == "Delete" and spec.flavour == "Java"
        if deletes is not has_finalizer(manifest):
            return Outcome(finalizer=deletes, retry_after_s=0, carried_out=False)
        namespace = manifest["metadata"]["namespace"]
        cluster = ClusterName(namespace, spec.cluster)
        match await self._controllers.state(cluster):
            case ClusterState.MISSING:
                message = f"spec.cluster: StreamCluster {spec.cluster} does not exist in namespace {namespace}."
                return conditions.refused("ClusterNotFound", message, retry_after_s=limits.OPERATOR_WAIT_S)
            case ClusterState.DELETING:
                message = f"spec.cluster: StreamCluster {spec.cluster} is being deleted."
                return conditions.refused("ClusterLeaving", message, retry_after_s=limits.OPERATOR_WAIT_S)
        if spec.flavour == "Rust":
            return await self._observe(cluster, spec, manifest)
        return await self._keep(cluster, spec, manifest)

    # -- flavour Rust -------------------------------------------------------------------------------------------

    async def _observe(self, cluster: ClusterName, spec: ReaderGroupSpec, manifest: Manifest) -> Outcome:
        group = f"{spec.scope}/{spec.group_name}"
        return await self._measured(cluster, spec, manifest, conditions.observed(group), None)

    # -- flavour Java -------------------------------------------------------------------------------------------

    async def _keep(self, cluster: ClusterName, spec: ReaderGroupSpec, manifest: Manifest) -> Outcome:
        async with self._controllers.use(cluster) as client:
            try:
                done = await self._apply_steps(client, spec, manifest)
            except _MissingError as error:
                return conditions.refused(error.reason, str(error), retry_after_s=limits.OPERATOR_WAIT_S)
            except BadRequestError as error:
                return conditions.refused("Refused", f"The controller refuses the specification: {error}.")
        uid = await belongs_to(self._list_known, spec, manifest, done.group_id)
        outcome = await self._measured(cluster, spec, manifest, done.ready, uid, done.generation)
        carried_out = outcome.carried_out and not done.edit_waits
        status = {**outcome.status, **(digest_field(spec) if carried_out else {})}
        notices = (*done.notices, *outcome.notices)
        return dataclasses.replace(outcome, status=status, notices=notices, carried_out=carried_out)

    async def _apply_steps(self, client: Client, spec: ReaderGroupSpec, manifest: Manifest) -> _Done:
        """Make the group match the specification."""
        group = f"{spec.scope}/{spec.group_name}"
        try:
            stored = await client.context.controller.reader_group_config(spec.scope, spec.group_name)
        except NoSuchReaderGroupError:
            made = await _create(client, spec, uuid.UUID(manifest["metadata"]["uid"]))
            notice = Notice("ReaderGroupCreated", f"Reader group {group} was created.")
            return _Done(conditions.matching(group), made.group_id, notice)
        differing = differences(spec, stored)
        if not differing:
            return _Done(conditions.matching(group), stored.group_id, generation=stored.generation)
        fields = ", ".join(f"spec.{name}" for name in differing)
        edited = is_edited(spec, manifest)
        if edited and await self._owns(spec, manifest, stored.group_id):
            await _require_streams(client, spec)
            await _reset(client, spec)
            notice = Notice(
                "ReaderGroupReset",
                f"Reader group {group} was reset because {fields} changed; it continues at its last positions.",
            )
            return _Done(conditions.matching(group), stored.group_id, notice)
        return _Done(conditions.mismatch(group, fields, edit_waits=edited), stored.group_id, edit_waits=edited)

    async def _owns(self, spec: ReaderGroupSpec, manifest: Manifest, group_id: uuid.UUID) -> bool:
        """Return whether the group belongs to this resource; only then the API server is asked, to make sure."""
        for list_objects in (self._list_known, self._objects.list):
            if await belongs_to(list_objects, spec, manifest, group_id) != manifest["metadata"]["uid"]:
                return False
        return True

    # -- both ---------------------------------------------------------------------------------------------------

    async def _measured(
        self,
        cluster: ClusterName,
        spec: ReaderGroupSpec,
        manifest: Manifest,
        ready: Condition,
        uid: str | None,
        generation: int = 0,
    ) -> Outcome:
        group = f"{spec.scope}/{spec.group_name}"
        notices: tuple[Notice, ...] = ()
        try:
            sample = await self._sample(cluster, spec, manifest)
            if sample.generation < generation:
                notices = await self._finish_reset(cluster, spec, generation)
        except NoSuchReaderGroupError:
            message = f"Reader group {group} has no state yet."
            if spec.flavour == "Rust":
                message = f"Reader group {group} does not exist yet: a Rust, Python or Node client creates it."
            return conditions.unmeasured("GroupNotFound", message, uid=None)
        except (DataError, IllegalStateError) as error:
            message = f"The state of reader group {group} cannot be read: {error}."
            return conditions.unmeasured("StateUnreadable", message, uid=uid)
        held = await self._held(cluster, spec)
        outcome = conditions.measured(sample, spec.lag_threshold, ready, held, uid)
        return dataclasses.replace(outcome, notices=notices)

    async def _finish_reset(self, cluster: ClusterName, spec: ReaderGroupSpec, generation: int) -> tuple[Notice, ...]:
        """Complete a reset that was cut off: the controller has `generation`, and the state had an older one.

        Return the Event; none when the state has that generation now, because the sample is older.
        """
        async with self._controllers.use(cluster) as client:
            handle = await client.reader_groups(spec.scope).open(spec.group_name)
            if (await handle.state()).config.generation >= generation:
                return ()
            await handle.finish_reset()
        message = (
            f"A reset of reader group {spec.scope}/{spec.group_name} was cut off before the group's state was written. "
            "Now it is; readers have to be created again."
        )
        return (Notice("ReaderGroupResetFinished", message),)

    async def _held(self, cluster: ClusterName, spec: ReaderGroupSpec) -> tuple[Condition, ...]:
        """Return the conditions of the group's part in the retention of its streams."""
        if not publishes(spec):
            return retention.no_subscriber()
        async with self._controllers.use(cluster):
            found = {}

            async def describe(scoped: str) -> None:
                with contextlib.suppress(NoSuchStreamError):
                    found[scoped] = await self._controllers.describe(cluster, StreamName.parse(scoped))

            await run_all(*(describe(scoped) for scoped in spec.streams))
        return retention.subscribed(f"{spec.scope}/{spec.group_name}", found, self._clock.now_ms())

    async def _sample(self, cluster: ClusterName, spec: ReaderGroupSpec, manifest: Manifest) -> Sample:
        group = TrackedGroup(
            resource=_resource(manifest["metadata"]["namespace"], manifest["metadata"]["name"]),
            scope=spec.scope,
            name=spec.group_name,
            is_rust=spec.flavour == "Rust",
            publishes=publishes(spec),
        )

        async def sample() -> Sample:
            return await self.lag.sample(cluster, group)

        try:
            return await sample()
        except NoSuchReaderGroupError:
            if group.is_rust:
                raise
        async with self._controllers.use(cluster) as client:
            await _initialize(client, spec)
        return await sample()


@dataclasses.dataclass(frozen=True, slots=True)
class _Done:
    """What was done to a group: condition Ready, the group's id, and the Event of a change.

    ``edit_waits``: an edit is carried out only when the group belongs to this resource. ``generation``: that the
    group's state has to have.
    """

    ready: Condition
    group_id: uuid.UUID
    notice: Notice | None = None
    edit_waits: bool = False
    generation: int = 0

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Return the Events."""
        return () if self.notice is None else (self.notice,)


class _MissingError(Exception):
    """A stream that the group reads does not exist; ``reason``: of the condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _resource(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


async def _require_streams(client: Client, spec: ReaderGroupSpec) -> None:
    for scoped in spec.streams:
        if not await client.context.controller.stream_exists(StreamName.parse(scoped)):
            raise _MissingError("StreamNotFound", f"spec.streams: stream {scoped} does not exist.")


async def _create(client: Client, spec: ReaderGroupSpec, group_id: uuid.UUID) -> ReaderGroupConfig:
    """Create the group with its initial state, or complete an earlier attempt."""
    await _require_streams(client, spec)
    start: dict[str, StreamCut | None] = {}
    if spec.start == "Tail":
        start = {scoped: await client.streams.tail(scoped) for scoped in spec.streams}
    await client.context.controller.create_scope(spec.scope)
    config = dataclasses.replace(wanted_config(spec, start), group_id=group_id)
    try:
        await client.reader_groups(spec.scope).create(spec.group_name, config)
    except AlreadyExistsError:  # by another client just now; the next reconcile reports differences
        return await client.context.controller.reader_group_config(spec.scope, spec.group_name)
    return config


async def _initialize(client: Client, spec: ReaderGroupSpec) -> None:
    """Write the initial state of a group that the controller knows and that has no state."""
    stored = await client.context.controller.reader_group_config(spec.scope, spec.group_name)
    await client.reader_groups(spec.scope).create(spec.group_name, stored)


async def _reset(client: Client, spec: ReaderGroupSpec) -> None:
    """Reset the group to its new configuration. Its streams continue at the positions that all readers have reported.

    New streams begin at `spec.start`. As after every reset, applications create their readers again.
    """
    handle = await client.reader_groups(spec.scope).open(spec.group_name)
    state = await handle.state()
    reached = await complete_cuts(client.context, state.coarse_positions())
    start: dict[str, StreamCut | None] = {}
    for scoped in spec.streams:
        if scoped in state.config.starting:
            start[scoped] = reached.get(scoped) or await client.streams.tail(scoped)
        elif spec.start == "Tail":
            start[scoped] = await client.streams.tail(scoped)
    await handle.reset(wanted_config(spec, start))
