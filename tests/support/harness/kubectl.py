"""kubectl and helm as tests use them: every call has a deadline, and what fails says the command and the answer."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")
Manifest = dict[str, Any]

CALL_DEADLINE_S = 120.0
POLL_INTERVAL_S = 0.5
QUIET_POLL_INTERVAL_S = 3.0
"""While clients' waits are measured: a command of kubectl takes a tenth of a second of a core."""
ANSWER_TAIL_CHARACTERS = 3000


class KubeError(Exception):
    """A command failed; ``answer`` is what it said."""

    def __init__(self, command: str, answer: str) -> None:
        super().__init__(f"{command}\n{answer[-ANSWER_TAIL_CHARACTERS:]}")
        self.answer = answer


class NotInTimeError(AssertionError):
    """Something did not become true before its deadline."""


@dataclass(frozen=True)
class Kubectl:
    """Commands against one cluster, in one namespace. ``programs``: where kubectl and helm are; None: in the PATH."""

    kubeconfig: Path
    namespace: str
    programs: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def within(self, namespace: str) -> Kubectl:
        """The same in another namespace."""
        return replace(self, namespace=namespace)

    # -- commands ------------------------------------------------------------------------------------------------

    def __call__(self, *words: str, stdin: str = "", deadline_s: float = CALL_DEADLINE_S) -> str:
        """What kubectl prints. Raises KubeError."""
        return self._run("kubectl", words, stdin, deadline_s)

    def helm(self, *words: str, stdin: str = "", deadline_s: float = CALL_DEADLINE_S) -> str:
        """What helm prints. Raises KubeError."""
        return self._run("helm", words, stdin, deadline_s)

    def _run(self, program: str, words: tuple[str, ...], stdin: str, deadline_s: float) -> str:
        path = str(self.programs / program) if self.programs is not None else program
        command = [path, "--namespace", self.namespace, *words]
        shown = " ".join([program, *command[1:]])
        try:
            done = subprocess.run(
                command,
                input=stdin,
                env={**os.environ, **self.environment, "KUBECONFIG": str(self.kubeconfig)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=deadline_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise KubeError(shown, f"no end within {deadline_s:.0f} s") from late
        if done.returncode != 0:
            raise KubeError(shown, done.stderr + done.stdout[-500:])
        return done.stdout

    # -- objects -------------------------------------------------------------------------------------------------

    def apply(self, *manifests: Manifest, deadline_s: float = CALL_DEADLINE_S) -> None:
        """Create or change objects. Raises KubeError."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self("apply", "--filename", "-", stdin=text, deadline_s=deadline_s)

    def refusal(self, manifest: Manifest) -> str:
        """What the API server says to an object that it must not take. Raises AssertionError: it took it."""
        try:
            self.apply(manifest)
        except KubeError as error:
            return error.answer
        raise AssertionError(f"the API server took {json.dumps(manifest)}")

    def find(self, kind: str, name: str) -> Manifest | None:
        """An object, or None. Raises KubeError."""
        text = self("get", kind, name, "--ignore-not-found", "--output", "json")
        found: Manifest | None = json.loads(text) if text.strip() else None
        return found

    def get(self, kind: str, name: str) -> Manifest:
        """An object. Raises KubeError: there is none."""
        found: Manifest = json.loads(self("get", kind, name, "--output", "json"))
        return found

    def list(self, kind: str, selector: str = "") -> list[Manifest]:
        """All objects of a kind. Raises KubeError."""
        chosen = ("--selector", selector) if selector else ()
        items: list[Manifest] = json.loads(self("get", kind, *chosen, "--output", "json"))["items"]
        return items

    def patch(self, kind: str, name: str, change: Manifest, *words: str) -> None:
        """Merge a change into an object. Raises KubeError."""
        self("patch", kind, name, "--type", "merge", "--patch", json.dumps(change), *words)

    def delete(self, kind: str, *names: str, deadline_s: float = CALL_DEADLINE_S) -> None:
        """Delete objects and wait until they are gone; what is not there is gone. Raises KubeError."""
        self("delete", kind, *names, "--ignore-not-found", deadline_s=deadline_s)

    def kill_pod(self, *names: str) -> None:
        """Delete pods by force: their processes get SIGKILL at once."""
        self("delete", "pod", *names, "--force", "--grace-period=0", "--wait=false")

    def python(self, pod: str, program: str, *, container: str = "", deadline_s: float = CALL_DEADLINE_S) -> str:
        """Run a Python program in a pod; returns what it prints. Raises KubeError."""
        chosen = ("--container", container) if container else ()
        return self("exec", pod, *chosen, "--", "python3.11", "-c", program, deadline_s=deadline_s)

    def events(self, name: str) -> Sequence[Manifest]:
        """Events about an object of that name, older ones first."""
        found = json.loads(self("get", "events", "--field-selector", f"involvedObject.name={name}", "--output", "json"))
        return sorted(found["items"], key=lambda event: str(event["metadata"]["creationTimestamp"]))

    # -- waiting -------------------------------------------------------------------------------------------------

    def until(self, what: str, probe: Callable[[], Found | None], deadline_s: float) -> Found:
        """Ask again and again until the answer is something; an API server that is away for a while is asked again.

        Raises NotInTimeError, with the last failure.
        """
        return until(what, probe, deadline_s)

    def until_condition(
        self,
        kind: str,
        name: str,
        condition: str,
        status: str,
        deadline_s: float,
        *,
        interval_s: float = POLL_INTERVAL_S,
    ) -> Manifest:
        """Wait until a condition of an object has that status, for the newest generation; returns the condition."""

        seen: Manifest = {}

        def probe() -> Manifest | None:
            nonlocal seen
            seen = self.find(kind, name) or {}
            found = condition_of(seen, condition)
            fresh = found.get("observedGeneration", 0) >= seen.get("metadata", {}).get("generation", 0)
            return found if found.get("status") == status and fresh else None

        try:
            return until(f"{kind}/{name}: {condition} is {status}", probe, deadline_s, interval_s=interval_s)
        except NotInTimeError as error:
            raise NotInTimeError(f"{error}\nits status: {json.dumps(seen.get('status'), indent=1)}") from None


def until(
    what: str, probe: Callable[[], Found | None], deadline_s: float, *, interval_s: float = POLL_INTERVAL_S
) -> Found:
    """As `Kubectl.until`. Raises NotInTimeError."""
    ends_s = time.monotonic() + deadline_s
    last = ""
    while True:
        try:
            if found := probe():
                return found
            last = ""
        except KubeError as error:
            last = f"\nthe last attempt failed: {error}"
        if time.monotonic() > ends_s:
            raise NotInTimeError(f"not within {deadline_s:.0f} s: {what}{last}")
        time.sleep(interval_s)


def condition_of(manifest: Manifest, condition: str) -> Manifest:
    """A condition of an object's status; empty when there is none of that type."""
    conditions: list[Manifest] = (manifest.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == condition), {})
