"""Whose an object is that has the name of a StreamCluster's child (ADR 0017)."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace_operator.cluster import names
from tailrace_operator.cluster.name_conflicts import name_conflict
from tailrace_operator.kube.objects import ROLES, SERVICE_ACCOUNTS

UID = "11111111-2222-4333-8444-555555555555"
OTHER = "99999999-2222-4333-8444-555555555555"
LABELLED: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{names.MANAGED_BY_LABEL}": {}}}}


def owner(uid: str = UID, name: str = "main", kind: str = "StreamCluster") -> dict[str, Any]:
    group = "tailrace.io/v1alpha1" if kind == "StreamCluster" else "apps/v1"
    return {"apiVersion": group, "kind": kind, "name": name, "uid": uid}


def entry(manager: str = "tailrace-operator", operation: str = "Apply", **more: Any) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": LABELLED, **more}


def thing(*owners: dict[str, Any], entries: tuple[dict[str, Any], ...] = (), **metadata: Any) -> dict[str, Any]:
    found = {"name": "main-store", "labels": names.labels("main", names.STORE), **metadata}
    return {"metadata": {**found, "ownerReferences": list(owners), "managedFields": list(entries)}}


@pytest.mark.parametrize(
    "found",
    [
        thing(owner()),
        thing(owner(OTHER, "else", "Deployment"), owner()),
        thing(entries=(entry(),)),
        thing(entries=(entry("kubectl", "Update"), entry(), entry("kube-controller-manager", "Update"))),
    ],
    ids=["its own", "its own and another's", "left", "left and changed by others"],
)
def test_what_is_its_own_or_left_of_one_before_is_taken(found: dict[str, Any]) -> None:
    assert name_conflict(STREAM_CLUSTERS, "main", UID, [(SERVICE_ACCOUNTS, found)]) is None


@pytest.mark.parametrize(
    "found",
    [
        thing(),
        {"metadata": {"name": "main-store"}},
        thing(entries=(entry("kubectl-client-side-apply", "Update"),)),
        thing(entries=(entry("helm"),)),
        thing(entries=(entry(operation="Update"),)),
        thing(entries=(entry(subresource="scale"),)),
        thing(entries=(entry(fieldsV1={"f:spec": {"f:replicas": {}}}),)),
        thing(entries=(entry(fieldsV1=None),)),
        thing(owner(OTHER, "else"), entries=(entry(),)),
        thing(owner(OTHER, "main", "Deployment"), entries=(entry(),)),
        thing(owner(OTHER), owner(OTHER, "else")),
    ],
    ids=[
        "labels alone",
        "nothing",
        "kubectl's",
        "another manager's",
        "updated, not applied",
        "a subresource",
        "an operator's Deployment that was scaled to 0",
        "no fields",
        "of another StreamCluster",
        "of another kind of that name",
        "of two",
    ],
)
def test_a_foreign_object_is_reported_with_the_fix(found: dict[str, Any]) -> None:
    own = thing(owner())
    problem = name_conflict(STREAM_CLUSTERS, "main", UID, [(ROLES, own), (SERVICE_ACCOUNTS, found)])
    assert problem is not None
    assert (problem.reason, problem.transient) == ("NameTaken", False)
    assert problem.message == (
        "metadata.name: objects with the names of its children already exist: ServiceAccount main-store: give the "
        "StreamCluster another name, or delete these objects"
    )


def test_all_foreign_objects_are_reported() -> None:
    problem = name_conflict(STREAM_CLUSTERS, "main", UID, [(ROLES, thing()), (SERVICE_ACCOUNTS, thing(owner(OTHER)))])
    assert problem is not None
    assert "Role main-store, ServiceAccount main-store:" in problem.message
    assert not problem.transient, "one of them stays"


@pytest.mark.parametrize(
    "found",
    [thing(owner(OTHER)), thing(deletionTimestamp="2026-01-01T00:00:00Z")],
    ids=["of the one before", "being deleted"],
)
def test_what_goes_by_itself_is_waited_for(found: dict[str, Any]) -> None:
    problem = name_conflict(STREAM_CLUSTERS, "main", UID, [(SERVICE_ACCOUNTS, found)])
    assert problem is not None
    assert (problem.reason, problem.transient) == ("NameTaken", True)
    assert problem.message == "metadata.name: waiting for objects that are being deleted: ServiceAccount main-store"
