"""The command `tailrace-operator release`, which the chart's pre-delete hook runs (ADR 0016)."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.cluster.kubernetes_api import HttpKubernetes
from tailrace.cluster.kubernetes_requests import in_cluster_configuration, kubeconfig_configuration
from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace_operator.kube.objects import HttpObjects
from tailrace_operator.uninstall.uninstaller import Uninstaller, UninstallTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.cluster.kubernetes_requests import Configuration

NAME: Final = "release"


@dataclass(frozen=True, slots=True)
class ReleaseSettings:
    """Options of the command line and the environment."""

    target: UninstallTarget
    kubeconfig: str | None
    identity: str
    deadline_s: float

    def configuration(self) -> Configuration:
        """Return a new configuration of the Kubernetes client. Raises StartError."""
        return kubeconfig_configuration(self.kubeconfig) if self.kubeconfig else in_cluster_configuration()


def release_settings_of(arguments: Sequence[str], environment: Mapping[str, str]) -> ReleaseSettings:
    """Parse the command line. As argparse does, exit the process when it is wrong."""
    parser = argparse.ArgumentParser(
        prog=f"tailrace-operator {NAME}",
        description="Stop an operator and remove its finalizers from all resources that it served. Nothing is deleted.",
    )
    parser.add_argument("--namespace", required=True, help="namespace of the operator, which it also served")
    parser.add_argument("--all-namespaces", action="store_true", help="the operator served all namespaces")
    parser.add_argument(
        "--deployment", help="Deployment of the operator, which is scaled to 0 (default: no operator runs)"
    )
    parser.add_argument("--kubeconfig", help="kubeconfig file, for use outside a pod")
    parser.add_argument(
        "--deadline",
        type=float,
        default=limits.OPERATOR_RELEASE_DEADLINE_S,
        help="seconds for the whole command; it can be repeated (default: %(default)g)",
    )
    found = parser.parse_args(arguments)
    if found.deadline < limits.OPERATOR_RELEASE_DEADLINE_MIN_S:
        parser.error(f"--deadline must be at least {limits.OPERATOR_RELEASE_DEADLINE_MIN_S:g} s")
    suffix = SystemEntropy().token(4).hex()
    return ReleaseSettings(
        UninstallTarget(found.namespace, found.all_namespaces, found.deployment),
        found.kubeconfig,
        f"{environment.get('POD_NAME') or os.uname().nodename}-{suffix}",
        found.deadline,
    )


async def release(settings: ReleaseSettings) -> None:
    """Run the command. Raises TailraceError: it did not complete; the message is the line to show."""
    objects = HttpObjects(settings.configuration(), settings.identity)
    api = HttpKubernetes(settings.configuration(), settings.target.namespace)
    try:
        await Uninstaller(settings.target, objects, api, settings.identity, SystemClock()).run(settings.deadline_s)
    finally:
        objects.close()
        await api.close()
