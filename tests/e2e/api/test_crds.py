"""The resources' definitions on a real API server: what it takes, what it refuses and with which words.

Nothing but an API server is needed: the namespace is the tests' own, and no operator looks at it.
"""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.kubectl import Kubectl, KubeError, until
from harness.resourcecases import CASES, EDITS, PLURALS, TIER2, Case, Edit, manifest
from tailrace.common import limits
from tailrace_operator.schema import grammar
from tailrace_operator.schema.apply import applied
from tailrace_operator.schema.definitions import DEFINITIONS

REPOSITORY = Path(__file__).resolve().parents[3]
CRDS = REPOSITORY / "crds"
EXAMPLES = REPOSITORY / "examples/kubernetes"
BY_KIND = {definition.kind: definition for definition in DEFINITIONS}
GOOD = [case for case in CASES if not case.refused]
BAD = [case for case in CASES if case.refused]
READY = {"type": "Ready", "status": "True", "reason": "AllGood", "message": "All is well."}


@pytest.fixture(scope="module")
def api(definitions: Kubectl) -> Iterator[Kubectl]:
    """A namespace of its own, and the definitions as they are here."""
    namespace = f"crds-{uuid.uuid4().hex[:8]}"
    kubectl = definitions.within(namespace)
    kubectl("create", "namespace", namespace)
    yield kubectl
    kubectl("delete", "namespace", namespace, "--wait=false")


def title(case: Case | Edit) -> str:
    return f"{case.kind}: {case.title}"


def dry(api: Kubectl, resource: dict[str, Any]) -> dict[str, Any]:
    text = api("create", "--dry-run=server", "--output=json", "--filename=-", stdin=json.dumps(resource))
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("case", GOOD, ids=title)
def test_a_good_resource_is_taken_with_its_defaults(api: Kubectl, case: Case) -> None:
    taken = dry(api, case.manifest())
    assert taken["spec"] == applied(BY_KIND[case.kind].spec(), case.manifest()["spec"], "spec")


@pytest.mark.parametrize("case", BAD, ids=title)
def test_a_bad_resource_is_refused_with_the_reason(api: Kubectl, case: Case) -> None:
    with pytest.raises(KubeError) as caught:
        dry(api, case.manifest())
    assert case.refused in caught.value.answer
    assert "evaluat" not in caught.value.answer, "a rule failed instead of telling"


@pytest.mark.parametrize("edit", EDITS, ids=title)
def test_an_edit_is_taken_or_refused_with_the_reason(api: Kubectl, edit: Edit) -> None:
    api.apply(manifest(edit.kind, edit.name, edit.before))
    try:
        after = manifest(edit.kind, edit.name, edit.after)
        if edit.refused:
            assert edit.refused in api.refusal(after)
        else:
            api.apply(after)
            spec = api.get(edit.kind, edit.name)["spec"]
            assert spec == applied(BY_KIND[edit.kind].spec(), after["spec"], "spec")
    finally:
        api.delete(edit.kind, edit.name)


@pytest.fixture
def stream(api: Kubectl) -> Iterator[Kubectl]:
    """A Stream called scaled."""
    api.apply(manifest("Stream", "scaled", {}))
    yield api
    api.delete("stream", "scaled")


def test_kubectl_scale_sets_the_least_number_of_segments(stream: Kubectl) -> None:
    stream("scale", "strm/scaled", "--replicas=5")
    assert stream.get("stream", "scaled")["spec"]["scaling"] == {"type": "Fixed", "minSegments": 5}


def test_kubectl_scale_to_nothing_is_refused(stream: Kubectl) -> None:
    with pytest.raises(KubeError) as caught:
        stream("scale", "strm/scaled", "--replicas=0")
    assert "spec.scaling.minSegments" in caught.value.answer


def test_the_scale_subresource_returns_the_segments_of_the_status(stream: Kubectl) -> None:
    stream.patch("stream", "scaled", {"status": {"segments": 7}}, "--subresource=status")
    scale = json.loads(stream("get", "stream", "scaled", "--subresource=scale", "--output=json"))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 7)


def test_status_is_written_apart_from_the_rest(stream: Kubectl) -> None:
    stream.patch("stream", "scaled", {"status": {"segments": 7}})
    assert "segments" not in stream.get("stream", "scaled").get("status", {})


def test_conditions_need_a_reason(stream: Kubectl) -> None:
    time = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
    stream.patch("stream", "scaled", {"status": {"conditions": [READY | time]}}, "--subresource=status")
    without = {name: value for name, value in (READY | time).items() if name != "reason"}
    with pytest.raises(KubeError) as caught:
        stream.patch("stream", "scaled", {"status": {"conditions": [without]}}, "--subresource=status")
    assert "status.conditions[0].reason" in caught.value.answer


def test_columns_show_condition_and_domain(stream: Kubectl) -> None:
    time = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
    status = {"conditions": [READY | time], "segments": 3, "bytes": 12, "epoch": 2}
    stream.patch("stream", "scaled", {"status": status}, "--subresource=status")

    def table() -> tuple[str, ...] | None:
        # kubectl learns of columns some time after a definition came
        head, row = stream("get", "strm", "scaled").splitlines()
        return (head, row) if "READY" in head else None

    head, row = until("kubectl knows the columns", table, 30)
    assert head.split() == ["NAME", "READY", "REASON", "SCOPE", "SEGMENTS", "RETAINED", "HELD", "BY", "AGE"]
    assert row.split()[:6] == ["scaled", "True", "AllGood", "shop", "3", "12"]
    wide, _ = stream("get", "strm", "scaled", "--output=wide").splitlines()
    assert {"STREAM", "CLUSTER", "SCALING", "RETENTION", "EPOCH", "DELETION"} <= set(wide.split())


def test_all_kinds_are_found_by_category_and_short_names(stream: Kubectl) -> None:
    others = ("StreamCluster", "ReaderGroup", "Pipeline")
    stream.apply(*(manifest(kind, "found", {}) for kind in others))
    listed = until("the category is known", lambda: stream("get", "tailrace", "--output=name"), 30).split()
    assert {line.partition(".")[0] for line in listed} == {kind.lower() for kind in PLURALS}
    for short, name in (("tsc", "found"), ("strm", "scaled"), ("rg", "found"), ("pl", "found")):
        assert stream("get", short, "--output=name").strip().endswith(f"/{name}")
    for kind in others:
        stream.delete(kind.lower(), "found")


def test_the_map_of_a_full_cluster_fits(api: Kubectl) -> None:
    api.apply(manifest("StreamCluster", "full", {"containers": limits.CONTAINERS_MAX}))
    worker = "c" * grammar.CLUSTER_NAME_MAX_LENGTH + "-store-255-63"
    containers = [{"id": number, "worker": worker, "handedOverBy": worker} for number in range(limits.CONTAINERS_MAX)]
    host = f"{worker}.{'n' * 63}.svc:12345"
    workers = [
        {"name": f"w{number}", "internal": host, "external": host} for number in range(grammar.WORKERS_LISTED_MAX)
    ]
    found = api.get("streamcluster", "full")
    full = json.dumps(found | {"status": {"containers": containers, "workers": workers}})
    api("replace", "--subresource=status", "--filename=-", stdin=full)
    status = api.get("streamcluster", "full")["status"]
    assert (len(status["containers"]), len(status["workers"])) == (len(containers), len(workers))
    api.delete("streamcluster", "full")


def test_the_place_of_the_data_may_change_before_there_is_any_and_not_after(api: Kubectl) -> None:
    api.apply(manifest("StreamCluster", "placed", {}))
    api.apply(manifest("StreamCluster", "placed", {"tier2": {**TIER2, "prefix": "a", "bucket": "other"}}))
    placed = {"status": {"containers": [{"id": 0, "worker": "placed-store-0-0"}]}}
    api.patch("streamcluster", "placed", placed, "--subresource=status")
    for tier2 in ({"bucket": "third"}, {"prefix": "b"}, {"prefix": ""}):
        kept = {**TIER2, "prefix": "a", "bucket": "other"}
        answer = api.refusal(manifest("StreamCluster", "placed", {"tier2": {**kept, **tier2}}))
        assert "immutable once containers are placed" in answer
    adopting = {"tier2": {**TIER2, "prefix": "a", "bucket": "other"}, "adoptClusterId": str(uuid.UUID(int=1))}
    answer = api.refusal(manifest("StreamCluster", "placed", adopting))
    assert "adoptClusterId is immutable once containers are placed" in answer
    moved = {**TIER2, "prefix": "a", "bucket": "other", "endpoint": "https://elsewhere", "credentialsSecret": "new"}
    api.apply(manifest("StreamCluster", "placed", {"tier2": moved}))
    api.delete("streamcluster", "placed")


@pytest.mark.parametrize(
    "status",
    [
        {"tier2": {"endpoint": TIER2["endpoint"], "bucket": TIER2["bucket"], "prefix": ""}},
        {"containers": [{"id": 0, "worker": "numbered-store-0-0"}]},
    ],
    ids=["claimed", "placed"],
)
def test_the_number_of_containers_stays_once_pods_may_have_it(api: Kubectl, status: dict[str, Any]) -> None:
    api.apply(manifest("StreamCluster", "numbered", {}))
    api.apply(manifest("StreamCluster", "numbered", {"containers": 8}))
    api.patch("streamcluster", "numbered", {"status": status}, "--subresource=status")
    answer = api.refusal(manifest("StreamCluster", "numbered", {"containers": 16}))
    assert "containers is immutable once the cluster has claimed its place" in answer
    api.apply(manifest("StreamCluster", "numbered", {"containers": 8, "segmentStore": {"replicas": 3}}))
    api.delete("streamcluster", "numbered")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_taken(api: Kubectl, path: Path) -> None:
    api("create", "--dry-run=server", "--validate=strict", "--filename", str(path))


def test_unknown_fields_are_not_kept(api: Kubectl) -> None:
    resource = manifest("Stream", "strange", {"colour": "red"})
    text = api("create", "--validate=false", "--dry-run=server", "--output=json", "-f-", stdin=json.dumps(resource))
    assert "colour" not in json.loads(text)["spec"]
