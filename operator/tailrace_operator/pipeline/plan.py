"""The input from which a Pipeline's children are rendered. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace_operator.cluster.names import controller_uri
from tailrace_operator.pipeline import names
from tailrace_operator.schema.pipeline_spec import ObjectStoreSpec

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.pipeline.last_run import LastRun
    from tailrace_operator.schema.pipeline_spec import PipelineSpec
    from tailrace_operator.schema.specs import Tier2Spec


@dataclass(frozen=True, slots=True)
class Plan:
    """The input of `children`. ``image``: when the specification names none. ``run``: a new value begins a new run.

    ``is_observed``: the operator has carried out this specification before. ``ended``: the Job of a run that has ended
    and is not made again; it stays unchanged. ``last_run``: the one in the status.
    """

    name: str
    namespace: str
    uid: str
    spec: PipelineSpec
    tier2: Tier2Spec
    image: str
    run: str
    is_observed: bool = False
    ended: Manifest | None = None
    last_run: LastRun | None = None

    @property
    def store(self) -> ObjectStoreSpec:
        """Return the object store of the job's files."""
        tier2 = self.tier2
        return self.spec.object_store or ObjectStoreSpec(tier2.endpoint, tier2.credentials_secret, tier2.region)

    @property
    def controller(self) -> str:
        """Return the URI of the cluster's controllers."""
        return controller_uri(self.spec.cluster, self.namespace)

    @property
    def service_account(self) -> str:
        """Return the service account of driver and executors."""
        return self.spec.service_account or names.of(self.name)

    @property
    def used_image(self) -> str:
        """Return the image of driver and executors."""
        return self.spec.image or self.image

    @property
    def pull_policy(self) -> str:
        """Return when the image is pulled."""
        return self.spec.image_pull_policy or "IfNotPresent"
