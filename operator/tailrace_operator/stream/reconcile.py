"""Reconcile a Stream: make its stream match through the controller (docs/design.md#resources, ADR 0014)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    InvalidSpecError,
    NoSuchStreamError,
    NotFoundError,
    NotTheOwnerError,
    UnavailableError,
)
from tailrace_operator.connections.controllers import ClusterName, ClusterState
from tailrace_operator.kube.manifests import Notice, created_ms, has_finalizer, is_deleted
from tailrace_operator.kube.objects import READER_GROUPS, STREAMS
from tailrace_operator.reconcile.outcome import Condition, Outcome
from tailrace_operator.schema.specs import StreamSpec, names_group
from tailrace_operator.stream import conditions
from tailrace_operator.stream.deletion import delete_stream
from tailrace_operator.stream.owner import Owner
from tailrace_operator.stream.plan import Claim, Create, Refuse, Scale, Sealed, Step, Update, Wait, next_step
from tailrace_operator.stream.rates import RATES, are_rates_near

if TYPE_CHECKING:
    from tailrace.client.async_client import Client
    from tailrace.client.control.owners import StreamDescription
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.connections.controllers import Controllers
    from tailrace_operator.kube.objects import ListObjects, Objects

UPDATED: Final = "StreamUpdated"
"""The reason of the Event when the stream's configuration was replaced."""


class StreamReconciler:
    """Implements Reconciler for Streams. ``list_known``: lists what may be late; None: ``objects`` does."""

    def __init__(
        self, objects: Objects, controllers: Controllers, clock: Clock, list_known: ListObjects | None = None
    ) -> None:
        self._objects = objects
        self._list_known = list_known or objects.list
        self._controllers = controllers
        self._clock = clock

    @property
    def kind(self) -> Kind:
        """See Reconciler.kind."""
        return STREAMS

    @property
    def period_s(self) -> float:
        """See Reconciler.period_s."""
        return limits.OPERATOR_PERIOD_S

    async def gone(self, namespace: str, name: str) -> None:
        """See Reconciler.gone. Nothing is kept in memory about streams."""

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        """See Reconciler.away."""
        try:
            spec = StreamSpec.parse(manifest)
        except InvalidSpecError:
            return ()
        cluster = ClusterName(manifest["metadata"]["namespace"], spec.cluster)
        if self._controllers.is_silent(cluster):
            return conditions.controller_away(spec, message)
        return conditions.unavailable(spec, message)

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """See Reconciler.reconcile."""
        if is_deleted(manifest):
            return await delete_stream(self._objects, self._controllers, manifest)
        try:
            spec = StreamSpec.parse(manifest)
        except InvalidSpecError as error:
            return conditions.refused("InvalidSpec", f"{error}.")
        deletes = spec.deletion_policy == "Delete"
        if deletes is not has_finalizer(manifest):
            # Written before there is a stream to delete.
            return Outcome(finalizer=deletes, retry_after_s=0, carried_out=False)
        outcome = await self._reconcile(spec, Owner.of(manifest), created_ms(manifest))
        said = {one.type for one in outcome.conditions}
        unknown = (conditions.scaling(spec, None), conditions.retention(spec, None, self._moment(None)))
        found = (*outcome.conditions, *(one for one in unknown if one.type not in said))
        scaled = conditions.scaled_since(manifest.get("status") or {}, outcome)
        notices = outcome.notices if scaled is None else (*outcome.notices, scaled)
        return dataclasses.replace(outcome, conditions=found, notices=notices)

    def _moment(self, period_ms: int | None, made_ms: int = 0) -> conditions.Moment:
        """Return the present time, and since when a policy with that period of rounds must have been applied.

        ``made_ms``: when the resource was made.
        """
        now_ms = self._clock.now_ms()
        if period_ms is None:
            return conditions.Moment(now_ms)
        late_ms = now_ms - limits.OPERATOR_RETENTION_LATE_PERIODS * period_ms - limits.OPERATOR_RETENTION_LATE_MS
        return conditions.Moment(now_ms, late_ms if made_ms < late_ms else None)

    async def _reconcile(self, spec: StreamSpec, me: Owner, made_ms: int) -> Outcome:
        cluster = ClusterName(me.namespace, spec.cluster)
        match await self._controllers.state(cluster):
            case ClusterState.MISSING:
                message = f"spec.cluster: StreamCluster {spec.cluster} does not exist in namespace {me.namespace}."
                return conditions.refused("ClusterNotFound", message, retry_after_s=limits.OPERATOR_WAIT_S)
            case ClusterState.DELETING:
                message = f"spec.cluster: StreamCluster {spec.cluster} is being deleted."
                return conditions.refused("ClusterLeaving", message, retry_after_s=limits.OPERATOR_WAIT_S)
        try:
            async with self._controllers.use(cluster) as client:
                try:
                    moment = self._moment(await self._controllers.retention_period_ms(cluster), made_ms)
                    outcome = await self._apply_steps(client, spec, me, moment)
                    return await self._with_holder(outcome, spec, me)
                except BadRequestError as error:
                    return conditions.refused("Refused", f"The controller refuses the specification: {error}.")
        except UnavailableError as error:
            reported = await self._controllers.containers_not_open(cluster)
            if not reported:
                raise
            return conditions.containers_not_open(spec, str(error), reported)

    async def _with_holder(self, outcome: Outcome, spec: StreamSpec, me: Owner) -> Outcome:
        """Name the resource of the reader group that holds data back."""
        retained: dict[str, Any] = outcome.measured.get(conditions.RETENTION) or {}
        held = retained.get("heldBy")
        if held is None:
            return outcome
        try:
            groups = await self._list_known(READER_GROUPS, me.namespace)
        except NotFoundError:  # the kind is not installed
            return outcome
        scope, _, group = str(held["subscriber"]).partition("/")
        naming = (one["metadata"]["name"] for one in groups if names_group(one, spec.cluster, scope, group))
        resource = min(naming, default=None)
        if resource is None:
            return outcome
        measured = {**outcome.measured, conditions.RETENTION: {**retained, "heldBy": {**held, "resource": resource}}}
        return dataclasses.replace(outcome, measured=measured)

    async def _describe(self, me: Owner, spec: StreamSpec) -> StreamDescription | None:
        try:
            return await self._controllers.describe(ClusterName(me.namespace, spec.cluster), _name(spec))
        except NoSuchStreamError:
            return None

    async def _apply_steps(self, client: Client, spec: StreamSpec, me: Owner, moment: conditions.Moment) -> Outcome:
        stream = _name(spec)
        notices: list[Notice] = []
        for _ in range(limits.OPERATOR_STREAM_STEPS_MAX):
            found = await self._describe(me, spec)
            step = next_step(spec, me, found, owner_is_deleted=await self._owner_is_deleted(me, found))
            if step is None or isinstance(step, Wait | Refuse | Sealed):
                return _outcome(spec, me, found, step, notices, moment)
            notice = await _take_step(client, stream, me, step)
            if notice is not None:
                notices.append(notice)
        condition = conditions.not_ready(
            "ChangedByOthers", f"Other clients keep changing stream {stream}; the operator retries."
        )
        return Outcome(
            (conditions.accepted(), condition),
            notices=tuple(notices),
            retry_after_s=limits.OPERATOR_STREAM_BUSY_S,
            carried_out=False,
        )

    async def _owner_is_deleted(self, me: Owner, found: StreamDescription | None) -> bool:
        """Return whether another resource owns the stream and does not exist any more (ADR 0014).

        This reads from the API server, because `me` may have been deleted meanwhile, too.
        """
        if found is None or found.owner in ("", str(me)):
            return False
        owner = Owner.parse(found.owner)
        if owner is None or owner.namespace != me.namespace:
            return await self._exists(me)  # a cluster's streams have resources in its own namespace only
        return not await self._exists(owner) and await self._exists(me)

    async def _exists(self, owner: Owner) -> bool:
        try:
            manifest = await self._objects.get(STREAMS, owner.namespace, owner.name)
        except NotFoundError:
            return False
        return bool(manifest["metadata"]["uid"] == owner.uid)


def _name(spec: StreamSpec) -> StreamName:
    return StreamName(spec.scope, spec.stream_name)


async def _take_step(client: Client, stream: StreamName, me: Owner, step: Step) -> Notice | None:
    """Take a step and return its Event. A concurrent change by another client shows in the next description."""
    controller = client.context.controller
    try:
        match step:
            case Create(config):
                await controller.create_scope(stream.scope)
                made = await controller.create_stream(stream, config)
                return Notice("StreamCreated", f"Stream {stream} was created.") if made else None
            case Claim(incarnation, expected):
                await controller.claim_stream(stream, incarnation, str(me), expected=expected)
                return _adopted(stream, me, expected)
            case Update(config, changes):
                await controller.update_stream(stream, config)
                return Notice(UPDATED, f"Stream {stream} was updated to its specification: {changes}.")
            case Scale(segments):
                await client.streams.scale_to(stream, segments)
                return Notice("StreamScaled", f"Stream {stream} was scaled to {segments} segments.")
            case _:
                raise AssertionError(f"{step} changes nothing")
    except (NoSuchStreamError, NotTheOwnerError):
        return None


def _adopted(stream: StreamName, me: Owner, expected: str) -> Notice | None:
    before = Owner.parse(expected)
    if before is None:
        return None
    return Notice(
        "StreamAdopted",
        f"Stream {stream} with its data was adopted from Stream {before.namespace}/{before.name}, "
        f"uid {before.uid}, which does not exist any more.",
    )


def _outcome(
    spec: StreamSpec,
    me: Owner,
    found: StreamDescription | None,
    step: Step | None,
    notices: list[Notice],
    moment: conditions.Moment,
) -> Outcome:
    stream = _name(spec)
    if isinstance(step, Refuse):
        owner = Owner.parse(step.owner)
        named = f"Stream {owner.namespace}/{owner.name}" if owner else step.owner
        return conditions.refused(
            "StreamOwnedByAnother",
            f"spec.streamName: stream {stream} belongs to {named}; delete one of the two resources.",
            retry_after_s=limits.OPERATOR_WAIT_S,
            uid=owner.uid if owner else None,
        )
    assert found is not None, "a missing stream is created"
    retry_after_s = None
    match step:
        case Wait(state):
            condition = conditions.not_ready("Changing", f"Stream {stream} is {state}.")
            retry_after_s = limits.OPERATOR_STREAM_BUSY_S
        case Sealed():
            condition = conditions.not_ready(
                conditions.SEALED, f"Stream {stream} is sealed: it accepts neither events nor changes any more."
            )
        case _:
            condition = conditions.ready(found)
    if notices:  # the policy may be new: the controllers apply it soon
        moment = moment._replace(late_ms=None)
    if retry_after_s is None and any(notice.reason == UPDATED for notice in notices):
        retry_after_s = limits.OPERATOR_STREAM_UPDATED_S
    policies = (conditions.scaling(spec, found), conditions.retention(spec, found, moment))
    return Outcome(
        (conditions.accepted(), condition, *policies),
        conditions.numbers(found, me),
        tuple(notices),
        retry_after_s,
        carried_out=not isinstance(step, Wait),
        measured=conditions.measured(spec, found, moment.now_ms),
        near={RATES: are_rates_near},
    )
