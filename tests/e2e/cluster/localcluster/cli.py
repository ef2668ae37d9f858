"""The command line. Errors are one line on standard error and exit code 1."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from localcluster import build, host, lifecycle, node
from localcluster.access import LocalCluster
from localcluster.errors import ClusterError
from localcluster.layout import Instance, cache_folder
from localcluster.supervisor import HOLDS

DEFAULT_OUTAGE_S = 60.0
PASSING_ON = ("kubectl", "helm", "run", "shell")


def main() -> int:
    """Run the command that the arguments name."""
    own, passed_on = _split(sys.argv[1:])
    options = _parser().parse_args(own)
    options.arguments = passed_on
    try:
        given = Instance.from_environment()
        instance = Instance(options.name or given.name, options.port or given.port)
        command: Callable[[Instance, argparse.Namespace], int | None] = options.command
        return command(instance, options) or 0
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("TAILRACE_CLUSTER_TRACE"):
            traceback.print_exc()
        print(f"cluster: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130
    return 1


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what belongs to the program that a command runs."""
    for position, argument in enumerate(arguments):
        if argument in PASSING_ON:
            rest = arguments[position + 1 :]
            return arguments[: position + 1], rest[1:] if rest[:1] == ["--"] else rest
    return arguments, []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A real single-node Kubernetes for tests.")
    parser.add_argument("--name", help="one of several clusters of this machine (TAILRACE_CLUSTER, default)")
    parser.add_argument("--port", type=int, help="of its API server on 127.0.0.1 (TAILRACE_CLUSTER_PORT, 6443)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[Instance, argparse.Namespace], int | None], text: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(command=command)
        return made

    add("missing-packages", _missing_packages, "print the Debian packages that are missing")
    add("build", _build, "build programs and images, unless that was done; prints their folder")
    add("is-built", _is_built, "exit with code 1 when build would have something to do")
    add("up", _up, "start the cluster and wait until it is ready; prints its kubeconfig")
    add("down", _down, "end the cluster and remove all of its state")
    add("status", _status, "print what runs; exit code 1 when the cluster is not up")
    add("kubeconfig", _kubeconfig, "print the path of the kubeconfig")
    add("load-image", _load_image, "give the cluster the images of an archive").add_argument("archive", type=Path)
    logs = add("logs", _logs, "print the log of a component, or the names of all logs")
    logs.add_argument("component", nargs="?")
    pause = add("pause-api", _pause_api, "take the API server away; it returns by itself")
    pause.add_argument("seconds", nargs="?", type=float, default=DEFAULT_OUTAGE_S)
    pause.add_argument("--how", choices=HOLDS, default=HOLDS[0], help="connections hang, or are refused")
    add("resume-api", _resume_api, "end the API server's outage now")
    for name, command, text in (
        ("kubectl", _kubectl, "run kubectl"),
        ("helm", _helm, "run helm"),
        ("run", _run, "run a program of the host where pods and Services are reached and resolved"),
        ("shell", _shell, "run a program inside all of the node's namespaces"),
    ):
        add(name, command, f"{text}; what follows is its command line")
    commands.add_parser("node").set_defaults(command=_node)
    return parser


def _missing_packages(instance: Instance, options: argparse.Namespace) -> None:
    for package in host.missing_packages():
        print(package)


def _build(instance: Instance, options: argparse.Namespace) -> None:
    print(build.binaries())


def _is_built(instance: Instance, options: argparse.Namespace) -> int:
    # build.py is a part of what names a build: a function of its own there would build all of them again.
    return 0 if (cache_folder() / build._inputs_digest()).is_dir() else 1


def _up(instance: Instance, options: argparse.Namespace) -> None:
    print(lifecycle.up(instance).kubeconfig)


def _down(instance: Instance, options: argparse.Namespace) -> None:
    lifecycle.down(instance)


def _status(instance: Instance, options: argparse.Namespace) -> None:
    cluster = LocalCluster(instance)
    status = cluster.status()
    identity = cluster.node
    print(f"node {status['stage']}, process {identity.pid if identity else '-'} {status['failure']}".rstrip())
    for name, component in sorted(status["components"].items()):
        state = component["held"] or ("running" if component["pid"] else "restarting")
        print(f"{name:<26} {state:<11} restarts {component['restarts']}")


def _kubeconfig(instance: Instance, options: argparse.Namespace) -> None:
    print(instance.kubeconfig)


def _load_image(instance: Instance, options: argparse.Namespace) -> None:
    print(LocalCluster(instance).load_image(options.archive).strip())


def _logs(instance: Instance, options: argparse.Namespace) -> None:
    names = sorted(path.stem for path in instance.logs.glob("*.log"))
    if options.component is None:
        print("\n".join(names))
    elif options.component not in names:
        raise ClusterError(f"no log of {options.component!r}; there are: {', '.join(names) or 'none'}")
    else:
        with (instance.logs / f"{options.component}.log").open(errors="replace") as log:
            for line in log:
                sys.stdout.write(line)


def _pause_api(instance: Instance, options: argparse.Namespace) -> None:
    LocalCluster(instance).pause_api(options.seconds, options.how)


def _resume_api(instance: Instance, options: argparse.Namespace) -> None:
    LocalCluster(instance).resume_api()


def _kubectl(instance: Instance, options: argparse.Namespace) -> int:
    cluster = LocalCluster(instance)
    return _call([cluster.kubectl_program, *options.arguments], cluster)


def _helm(instance: Instance, options: argparse.Namespace) -> int:
    cluster = LocalCluster(instance)
    return _call([cluster.helm_program, *options.arguments], cluster)


def _run(instance: Instance, options: argparse.Namespace) -> int:
    cluster = LocalCluster(instance)
    return _call(cluster.inside(options.arguments or ["sh"]), cluster)


def _shell(instance: Instance, options: argparse.Namespace) -> int:
    cluster = LocalCluster(instance)
    return _call(cluster.inside_processes(options.arguments or ["sh"]), cluster)


def _call(command: list[str], cluster: LocalCluster) -> int:
    cluster.status()
    return subprocess.run(command, env=cluster.environment, check=False).returncode


def _node(instance: Instance, options: argparse.Namespace) -> None:
    programs = LocalCluster(instance).programs
    if programs is None:
        raise ClusterError("the node is started by: up")
    node.main(instance, programs)
