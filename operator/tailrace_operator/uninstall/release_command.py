"""The command `tailrace-operator release`, which Helm's hook runs before a release is removed (ADR 0016)."""

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
from tailrace_operator.uninstall.uninstaller import Leaving, Uninstalling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.cluster.kubernetes_requests import Configuration

NAME: Final = "release"


@dataclass(frozen=True, slots=True)
class ReleaseSettings:
    """What the command line and the environment say."""

    leaving: Leaving
    kubeconfig: str | None
    identity: str
    deadline_s: float

    def configuration(self) -> Configuration:
        """How the API is reached; a new one for each user of it. Raises StartError."""
        return kubeconfig_configuration(self.kubeconfig) if self.kubeconfig else in_cluster_configuration()


def release_settings_of(arguments: Sequence[str], environment: Mapping[str, str]) -> ReleaseSettings:
    """Read the command line. Ends the process when it is wrong, as argparse does."""
    parser = argparse.ArgumentParser(
        prog=f"tailrace-operator {NAME}",
        description="Stop an operator and take its finalizers off all resources that it served. Nothing is deleted.",
    )
    parser.add_argument("--namespace", required=True, help="the operator's own namespace, and the one that it served")
    parser.add_argument("--all-namespaces", action="store_true", help="it served all namespaces")
    parser.add_argument("--deployment", help="the operator's Deployment, which is scaled to 0 (default: none runs)")
    parser.add_argument("--kubeconfig", help="how to reach the API from outside of a pod")
    parser.add_argument(
        "--deadline",
        type=float,
        default=limits.OPERATOR_RELEASE_DEADLINE_S,
        help="seconds for all of it; it may be done again",
    )
    found = parser.parse_args(arguments)
    if found.deadline < limits.OPERATOR_RELEASE_DEADLINE_MIN_S:
        parser.error(f"a deadline has at least {limits.OPERATOR_RELEASE_DEADLINE_MIN_S:g} s")
    suffix = SystemEntropy().token(4).hex()
    return ReleaseSettings(
        Leaving(found.namespace, found.all_namespaces, found.deployment),
        found.kubeconfig,
        f"{environment.get('POD_NAME') or os.uname().nodename}-{suffix}",
        found.deadline,
    )


async def release(settings: ReleaseSettings) -> None:
    """Carry it out. Raises TailraceError: not all of it could be done; its message is the line to show."""
    objects = HttpObjects(settings.configuration(), settings.identity)
    api = HttpKubernetes(settings.configuration(), settings.leaving.namespace)
    try:
        await Uninstalling(settings.leaving, objects, api, settings.identity, SystemClock()).run(settings.deadline_s)
    finally:
        objects.close()
        await api.close()
