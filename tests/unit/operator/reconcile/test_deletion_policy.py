"""Why nothing is deleted although a resource goes: what is not known is asked again, not decided (ADR 0014)."""

from __future__ import annotations

import pytest

from harness.localobjects import NAMESPACE, LocalObjects
from tailrace.cluster.kubernetes import ForbiddenError, Kind
from tailrace.common.errors import UnavailableError
from tailrace_operator.connections.controllers import ClusterName, Controllers
from tailrace_operator.kube.objects import READER_GROUPS, STREAM_CLUSTERS, STREAMS
from tailrace_operator.reconcile.deletion_policy import release_notice, retention_reason


class Refusing(LocalObjects):
    """Does not tell about namespaces."""

    def __init__(self, error: UnavailableError) -> None:
        super().__init__()
        self.error = error

    async def namespace_is_terminating(self, namespace: str) -> bool:
        """See Objects.namespace_is_terminating."""
        raise self.error


async def asked(objects: LocalObjects) -> str | None:
    objects.make(STREAM_CLUSTERS, "main", {})
    stream = objects.make(STREAMS, "orders", {"cluster": "main", "deletionPolicy": "Delete"})
    return await retention_reason(
        objects,
        Controllers(objects, uri=lambda _: "tcp://127.0.0.1:1"),
        stream,
        ClusterName(NAMESPACE, "main"),
        "Delete",
    )


async def test_while_it_is_not_known_whether_the_namespace_goes_nothing_is_deleted() -> None:
    """An API server that is busy deleting a namespace is late with answers; the data of its streams is to stay."""
    with pytest.raises(UnavailableError):
        await asked(Refusing(UnavailableError("too many requests")))


async def test_while_the_operator_may_not_look_at_the_namespace_nothing_is_deleted() -> None:
    """The rights of the operator go before its last resources while a namespace is deleted."""
    with pytest.raises(ForbiddenError):
        await asked(Refusing(ForbiddenError("no")))


async def test_a_namespace_that_goes_keeps_its_data() -> None:
    objects = LocalObjects()
    objects.terminating.add(NAMESPACE)
    assert await asked(objects) == f"namespace {NAMESPACE} is being deleted"
    assert await asked(LocalObjects()) is None


@pytest.mark.parametrize("kind", [STREAMS, READER_GROUPS])
def test_after_an_attempt_to_delete_nothing_is_said_to_be_kept(kind: Kind) -> None:
    """The controllers may have recorded the deletion before a call of the operator failed, and then go on with it."""
    untouched = LocalObjects().make(kind, "orders", {})
    notice = release_notice(untouched, kind.kind, "It", "of a reason")
    assert (notice.reason, notice.message) == (f"{kind.kind}Retained", "It is kept: of a reason.")
    tried = {**untouched, "status": {"conditions": [{"type": "Ready", "reason": "DeletionWaits"}]}}
    notice = release_notice(tried, kind.kind, "It", "of a reason")
    assert notice.reason == f"{kind.kind}DeletionUnfinished"
    assert "may still be deleted" in notice.message
