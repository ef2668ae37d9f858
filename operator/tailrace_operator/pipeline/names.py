"""Names, labels and ports of a Pipeline's children; pure (ADR 0039)."""

from __future__ import annotations

from typing import Final

from tailrace_operator.cluster.names import COMPONENT_LABEL, MANAGED

COMPONENT: Final = "pipeline"
PIPELINE_LABEL: Final = "tailrace.io/pipeline"
ROLE_LABEL: Final = "spark-role"
"""Spark gives its executors this label; the operator gives it to drivers."""
DRIVER: Final = "driver"
EXECUTOR: Final = "executor"

STATUS_PORT: Final = 6061
UI_PORT: Final = 4040
DRIVER_PORT: Final = 7078
BLOCKS_PORT: Final = 7079


def of(pipeline: str) -> str:
    """Return the name of all children: ServiceAccount, Role, RoleBinding, ConfigMap and workload."""
    return f"{pipeline}-pipeline"


def labels(pipeline: str) -> dict[str, str]:
    """Return the labels of a child."""
    return {**MANAGED, COMPONENT_LABEL: COMPONENT, PIPELINE_LABEL: pipeline}


def driver_labels(pipeline: str) -> dict[str, str]:
    """Return the labels of a driver."""
    return {**labels(pipeline), ROLE_LABEL: DRIVER}
