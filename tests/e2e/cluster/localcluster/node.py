"""The node: one process that makes the namespaces, is the first in them, and runs everything else there.

The listener for the host is bound before the namespaces are left behind: connections to it come in on the host's side
and go on to the API server on the node's side, through this process and no other. When it is killed, the kernel ends
every process, mount, interface and rule of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcluster import configs, layout, system
from localcluster.errors import ClusterError
from localcluster.layout import Instance
from localcluster.supervisor import Supervisor

NAMESPACES = system.CLONE_NEWNS | system.CLONE_NEWUTS | system.CLONE_NEWIPC | system.CLONE_NEWPID | system.CLONE_NEWNET
API = "kube-apiserver"
POLL_S = 0.1
READY_LIMIT_S = 120.0
REQUEST_LIMIT_BYTES = 65536
FORWARD_BYTES = 65536
PATH = f"{layout.NODE_BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KERNEL_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/bridge/bridge-nf-call-iptables": "1",
}


def main(instance: Instance, binaries: Path) -> None:
    """Become the node; the caller goes on as a process that ends at once."""
    listener = socket.create_server(("127.0.0.1", instance.port))
    os.setsid()
    system.join_node_cgroup(instance.cgroup)
    system.unshare(NAMESPACES)
    noted, note = os.pipe()
    pid = os.fork()
    if pid:
        identity = system.ProcessIdentity.of(pid)
        if identity is not None:
            identity.write(instance.run / "node.json")
        os._exit(0)
    os.close(note)
    os.read(noted, 1)  # until the process above has ended: it sees the same mounts, and no process of its own in /proc
    os.close(noted)
    os.chdir("/")
    os.environ["PATH"] = PATH
    _mounts(instance.run, binaries)
    socket.sethostname(layout.NODE_NAME)
    _network()
    asyncio.run(Node(instance.port, listener).serve())


def _mounts(run: Path, binaries: Path) -> None:
    # Held open: either folder may lie below one that is covered here.
    folders = {
        os.open(run, os.O_PATH | os.O_DIRECTORY): layout.NODE_RUN,
        os.open(binaries, os.O_PATH | os.O_DIRECTORY): layout.NODE_BIN,
    }
    # Nothing that is mounted here is seen by the host; what is mounted below is passed on to containers.
    system.mount("", "/", flags=system.MS_REC | system.MS_PRIVATE)
    system.mount("", "/", flags=system.MS_REC | system.MS_SHARED)
    system.mount("proc", "/proc", "proc")
    names = os.path.realpath("/etc/resolv.conf")
    for target in ("/run", "/var/lib", "/var/log"):
        system.mount("tmpfs", target, "tmpfs", options="mode=0755")
        system.mount("", target, flags=system.MS_SHARED)
    for descriptor, target in folders.items():
        Path(target).mkdir(parents=True)
        system.mount(f"/proc/self/fd/{descriptor}", target, flags=system.MS_BIND)
        system.mount("", target, flags=system.MS_SHARED)
        os.close(descriptor)
    if not os.path.exists(names):
        Path(names).parent.mkdir(parents=True, exist_ok=True)
        Path(names).touch()
    system.mount(f"{configs.CONFIGS}/resolv.conf", names, flags=system.MS_BIND)


def _network() -> None:
    """The node's interface is one end of a pair whose other end is here, too: packets have nowhere to go."""
    for command in (
        "link set lo up",
        "link add node0 type veth peer name node0-peer",
        f"address add {layout.NODE_ADDRESS}/24 dev node0",
        "link set node0 up",
        "link set node0-peer up",
        "route add default dev node0",
    ):
        subprocess.run(["ip", *command.split()], check=True, timeout=10)
    for setting, value in KERNEL_SETTINGS.items():
        Path("/proc/sys", setting).write_text(value)


@dataclass
class Node:
    """The first process of the node: its components, its door to the host, and the requests it takes."""

    port: int
    listener: socket.socket
    stage: str = "starting"
    failure: str = ""
    supervisor: Supervisor = field(init=False)
    images: list[Path] = field(init=False)

    def __post_init__(self) -> None:
        run = Path(layout.NODE_RUN)
        environment = {"PATH": PATH, "HOME": "/run", "KUBECONFIG": f"{configs.KUBECONFIGS}/admin", "LANG": "C.UTF-8"}
        self.images = sorted(Path(layout.NODE_BIN, "images").glob("*.tar"))
        self.supervisor = Supervisor(run / "logs", environment)

    async def serve(self) -> None:
        """Run until this process is killed."""
        self.supervisor.attach()
        control = await asyncio.start_unix_server(self._request, f"{layout.NODE_RUN}/control.sock", backlog=16)
        door = await asyncio.start_server(self._forward, sock=self.listener)
        async with control, door:
            try:
                async with asyncio.timeout(READY_LIMIT_S):
                    await self._start_components()
                self.stage = "running"
            except (ClusterError, TimeoutError) as error:
                self.stage = "failed"
                self.failure = str(error) or f"the node has not started within {READY_LIMIT_S:.0f} s"
            await asyncio.Event().wait()

    async def _start_components(self) -> None:
        commands = configs.components(self.port)

        def start(*names: str) -> None:
            for name in names:
                self.supervisor.start(name, commands[name])

        start("containerd", "etcd", API)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._import_images())
            tasks.create_task(self._api_ready())
        start("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")

    async def _import_images(self) -> None:
        client = ["ctr", "--address", layout.CONTAINERD_SOCKET, "--namespace", "k8s.io"]
        while await self.supervisor.run("containerd-client", [*client, "version"]) != 0:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        for archive in self.images:
            if await self.supervisor.run("containerd-client", [*client, "images", "import", str(archive)]) != 0:
                raise ClusterError(f"containerd did not take the image {archive.name}")

    async def _api_ready(self) -> None:
        trusted = ssl.create_default_context(cafile=f"{configs.PKI}/ca.crt")

        def ready() -> bool:
            try:
                with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/readyz", timeout=5, context=trusted) as got:
                    return bool(got.status == 200)
            except (OSError, urllib.error.HTTPError):
                return False

        while not await asyncio.to_thread(ready):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the host to the API server."""
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_pipe(reader, inner_writer))
                    tasks.create_task(_pipe(inner_reader, writer))
            finally:
                inner_writer.transport.abort()
        except* OSError:
            pass  # either side may go at any time; the other one learns it below
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection: a line of JSON each way."""
        try:
            reply = self._answer(json.loads(await reader.readline()))
        except (ClusterError, ValueError, KeyError, TypeError) as error:
            reply = {"error": str(error)}
        writer.write(json.dumps(reply).encode() + b"\n")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "status":
                return {"stage": self.stage, "failure": self.failure, "components": self.supervisor.status()}
            case "hold":
                self.supervisor.hold(request["component"], request["how"], float(request["limit_s"]))
            case "release":
                self.supervisor.release(request["component"])
            case other:
                raise ClusterError(f"no such request: {other!r}")
        return {}


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(FORWARD_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def ask(instance: Instance, request: dict[str, Any], limit_s: float = 10) -> dict[str, Any]:
    """Send a request to the node from the host; raises ClusterError when it refuses, OSError when it is not there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit_s)
        connection.connect(str(instance.control_socket))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as file:
            line = file.readline(REQUEST_LIMIT_BYTES)
    if not line:
        raise ConnectionResetError("the node closed the connection")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise ClusterError(reply["error"])
    return reply
