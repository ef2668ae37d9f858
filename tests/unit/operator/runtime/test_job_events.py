"""What a watch says of a Job reaches the Pipelines' reconciler, also when it says that the Job is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.cluster.kubernetes import Manifest
from tailrace_operator.kube.objects import DEPLOYMENTS, JOBS, PIPELINES
from tailrace_operator.reconcile.keys import Key
from tailrace_operator.runtime.main import Operator

OWNER = {"apiVersion": PIPELINES.api_version, "kind": "Pipeline", "name": "nightly", "uid": "1"}


@pytest.mark.parametrize("change", [None, "ADDED", "MODIFIED", "DELETED"])
def test_jobs_are_heard_of_before_their_pipeline_is_looked_at(change: str | None) -> None:
    heard: list[Any] = []
    operator: Any = Operator.__new__(Operator)
    operator._pipelines = SimpleNamespace(heard_job=heard.append)
    operator._loop = SimpleNamespace(child_changed=heard.append)
    job: Manifest = {"metadata": {"namespace": "here", "name": "nightly-pipeline", "ownerReferences": [OWNER]}}
    operator._on_event(JOBS, change, job)
    assert heard == [job, Key(PIPELINES.plural, "here", "nightly")]
    heard.clear()
    operator._on_event(DEPLOYMENTS, change, {"metadata": {"namespace": "here", "name": "x"}})
    assert heard == []
