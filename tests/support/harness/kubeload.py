"""Writers and readers in pods, and the proof that nothing was lost, doubled or reordered."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import sequences
from harness.kubectl import Kubectl, Manifest, until

HARNESS = Path(__file__).resolve().parent
REPOSITORY = HARNESS.parent.parent.parent
PROGRAMS = REPOSITORY / "tests/e2e/kubernetes/programs"
SHARED = ("history.py", "sequences.py")
CONFIG_MAP = "load-programs"
PROGRAM_FOLDER = "/programs"

PYTHON_IMAGE = "localhost/tailrace-test"
JAVA_IMAGE = "localhost/tailrace-test-java"
JAVA_CLASS_PATH = "/opt/java/classes:/opt/java/lib/*"

START_DEADLINE_S = 120.0
CATCH_UP_DEADLINE_S = 180.0
END_DEADLINE_S = 900.0  # a full read of 1000 segments took more than 300 s on two cores at a load of 19
EVENT_BYTES = 100
TALE_LINES = 400
END_PROGRAM = "import os; os.kill(1, 15)"


@dataclass(frozen=True)
class Images:
    """Where the programs of a load run."""

    python: str
    java: str


def programs_manifest() -> Manifest:
    """The ConfigMap with all programs."""
    files = [*sorted(PROGRAMS.glob("*.py")), *(HARNESS / name for name in SHARED)]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP},
        "data": {file.name: file.read_text() for file in files},
    }


def pod_manifest(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    environment: dict[str, str] | None = None,
    memory: str = "512Mi",
    config_map: str = CONFIG_MAP,
) -> Manifest:
    """A pod that runs one command to its end, with as few rights as any of the product's."""
    security = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "load"}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "load",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": list(command),
                    "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
                    "workingDir": "/tmp",
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": memory}},
                    "securityContext": security,
                    "volumeMounts": [
                        {"name": "programs", "mountPath": PROGRAM_FOLDER, "readOnly": True},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
            "volumes": [
                {"name": "programs", "configMap": {"name": config_map}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


@dataclass
class LoadPod:
    """A program in a pod; it reports what it does in lines of JSON."""

    kube: Kubectl
    name: str

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return its latest reports of a kind."""
        text = self.kube("logs", f"--tail={TALE_LINES}", self.name)
        reports = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in reports if line["kind"] == kind]

    def progress(self) -> dict[str, Any]:
        """Its last line of progress; empty before the first one."""
        reports = self.lines("progress")
        return reports[-1] if reports else {}

    def check_alive(self, *, may_be_done: bool = False) -> str:
        """Return its phase; fails when it ended by itself, unless it may be done and has succeeded."""
        phase: str = self.kube.get("pod", self.name)["status"]["phase"]
        allowed = ("Pending", "Running", "Succeeded") if may_be_done else ("Pending", "Running")
        assert phase in allowed, f"{self.name} {phase}: {self.kube('logs', '--tail=40', self.name)}"
        return phase

    def until(self, name: str, at_least: int, deadline_s: float) -> dict[str, Any]:
        """Wait for a figure of its progress."""

        def probe() -> dict[str, Any] | None:
            report = self.progress()
            if report.get(name, -1) >= at_least:
                return report
            self.check_alive()
            return None

        return until(f"{name} of {self.name} is {at_least}", probe, deadline_s)

    def end(self, *, asked: bool = True) -> dict[str, Any]:
        """Ask it to come to an end, wait for that, and return its last words."""
        if asked:
            self.kube.python(self.name, END_PROGRAM)

        def probe() -> str | None:
            phase = str(self.kube.get("pod", self.name)["status"]["phase"])
            return phase if phase in ("Succeeded", "Failed") else None

        phase = until(f"{self.name} ends", probe, END_DEADLINE_S)
        tale = self.kube("logs", "--tail=60", self.name)
        assert phase == "Succeeded", f"{self.name} failed:\n{tale}"
        last = self.lines("end")
        assert last, f"{self.name} said no last word:\n{tale}"
        return last[-1]

    def delete(self) -> None:
        """Take it away."""
        remove_pods(self.kube, self.name)


@dataclass(frozen=True)
class Programs:
    """Runs a program in a pod to its end."""

    kube: Kubectl
    images: Images
    controller: str

    def run(
        self,
        name: str,
        image: str,
        command: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        config_map: str = CONFIG_MAP,
        deadline_s: float = END_DEADLINE_S,
    ) -> str:
        """Any command; returns what it printed. Raises AssertionError when it fails."""
        self.kube.apply(pod_manifest(name, image, command, environment=environment, config_map=config_map))

        def probe() -> str | None:
            phase = str(self.kube.get("pod", name)["status"]["phase"])
            return phase if phase in ("Succeeded", "Failed") else None

        phase = until(f"{name} ends", probe, deadline_s)
        output = self.kube("logs", name)
        assert phase == "Succeeded", f"{name} failed:\n{output[-4000:]}"
        remove_pods(self.kube, name)
        return output

    def write(
        self, stream: str, events: int, *, keys: int = 8, name: str = "w", kind: str = "tailrace"
    ) -> dict[str, int]:
        """Write events in the form of that kind of client; returns how many of each key.

        A writer's name is new to the stream: numbers begin with 0.
        """
        words = (name, str(keys), str(events), str(EVENT_BYTES), *(["java"] if kind == "java" else []))
        return dict(self._last_words("write-some", "write_some.py", self.controller, stream, *words)["keys"])

    def read(self, stream: str) -> dict[str, int]:
        """How many events of each key are in a stream now; fails when any is twice or out of order."""
        read = self._last_words("read-all", "load_verify.py", self.controller, stream)
        assert not read["violations"], f"{stream}: {read['violations']}: {read['examples']}"
        return dict(read["keys"])

    def _last_words(self, name: str, program: str, *words: str) -> dict[str, Any]:
        output = self.run(name, self.images.python, ["python3.11", f"{PROGRAM_FOLDER}/{program}", *words])
        last: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return last


def remove_pods(kube: Kubectl, *names: str) -> None:
    """Take pods away, now, so that their names are free."""
    kube("delete", "pod", *names, "--force", "--grace-period=0", "--ignore-not-found", deadline_s=120)


def _new_name(base: str) -> str:
    return f"{base}-{uuid.uuid4().hex[:8]}"


@dataclass
class Load:
    """A writer and a reader group over one stream, of one kind of client: ``tailrace`` or ``java``."""

    kube: Kubectl
    images: Images
    controller: str
    stream: str
    """SCOPE/STREAM."""
    kind: str = "tailrace"
    keys: int = 16
    rate: int = 200
    """Events a second; 0: as many as are taken."""
    length_bytes: int = 200
    readers: int = 2
    joins: str = ""
    """A reader group that is there already; else one is made, new for each load: groups outlive streams."""
    writer: LoadPod = field(init=False)
    reader: LoadPod = field(init=False)
    wrote: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        base = f"{self.kind}-{self.stream.rpartition('/')[2]}"
        self.writer = LoadPod(self.kube, f"{base}-writer")
        self.reader = LoadPod(self.kube, f"{base}-reader")

    def start(self) -> None:
        """Make the pods; returns at once."""
        numbers = (str(self.keys), str(self.rate), str(self.length_bytes))
        group = (self.joins, str(self.readers), "join") if self.joins else (_new_name("group"), str(self.readers))
        self.kube.apply(
            pod_manifest(self.writer.name, self._image, self._command("writer", "w", *numbers)),
            pod_manifest(self.reader.name, self._image, self._command("reader", *group)),
        )

    @property
    def _image(self) -> str:
        return self.images.java if self.kind == "java" else self.images.python

    def _command(self, role: str, *words: str) -> list[str]:
        place = (self.controller, self.stream)
        if self.kind == "java":
            return ["python3.11", f"{PROGRAM_FOLDER}/load_java.py", role, JAVA_CLASS_PATH, *place, *words]
        return ["python3.11", f"{PROGRAM_FOLDER}/load_{role}.py", *place, *words]

    def until_flowing(self) -> None:
        """Wait until events are written and read."""
        self.writer.until("acknowledged", 5 * self.keys, START_DEADLINE_S)
        self.reader.until("events", 5 * self.keys, START_DEADLINE_S)

    def until_more(self, deadline_s: float) -> None:
        """Wait until more is acknowledged than now."""
        self.writer.until("acknowledged", self.writer.progress().get("acknowledged", 0) + self.keys, deadline_s)

    def finish(self) -> int:
        """End the writer, let the reader catch up, read all again without a group; fails unless all agree.

        Returns the number of events.
        """
        self.wrote = self.writer.end()
        written = self.wrote["keys"]
        total = sum(written.values())
        assert not self.wrote["failed"], f"{self.stream}: {self.wrote['failed']}"
        unacknowledged = sequences.differences(written, self.wrote["acknowledged_of"])
        assert not unacknowledged, f"{self.stream}: some events were never acknowledged: {unacknowledged}"
        self.reader.until("events", total, CATCH_UP_DEADLINE_S)
        self.agrees(self.reader.end(), written)
        self.agrees(self.verify(), written)
        for pod in (self.writer, self.reader):
            pod.delete()
        return total

    def verify(self) -> dict[str, Any]:
        """What a full read from the head finds now."""
        pod = LoadPod(self.kube, f"{self.writer.name}-verify")
        command = ["python3.11", f"{PROGRAM_FOLDER}/load_verify.py", self.controller, self.stream]
        self.kube.apply(pod_manifest(pod.name, self.images.python, command))
        report = pod.end(asked=False)
        pod.delete()
        return report

    def agrees(self, read: dict[str, Any], written: dict[str, int]) -> None:
        """Fails when what was read is not what was written, each event once and in order."""
        assert not read["violations"], f"{self.stream}: {read['violations']}: {read['examples']}"
        differences = sequences.differences(written, read["keys"])
        assert not differences, f"{self.stream}: {differences[:20]}"

    def longest_pause_s(self, begin_s: float, end_s: float) -> float:
        """The longest time for which a key was not acknowledged, of those that touch this span; after `finish`."""
        return sequences.longest_pause_s(self.wrote["pauses"], begin_s, end_s)
