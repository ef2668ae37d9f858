"""The operator's watch of objects, by kopf, over HTTP: changes of many objects are heard at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import pytest
from kubernetes import client

from harness.apiserver import NAMESPACE, ApiServer, api_server
from tailrace.cluster.kubernetes import Kind, Manifest
from tailrace_operator.kube.handlers import KopfWatch
from tailrace_operator.kube.objects import STREAMS

OBJECTS = 200
BOUND_S = 12.0
"""With a few workers that each wait for a second, the last of the objects is heard after 25 s, on any machine."""
TRIES = 3
DEADLINE_S = 120.0


class _Heard:
    """What the watch has reported: the newest text of each object."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._changed = asyncio.Event()

    def on_event(self, _: Kind, change: str | None, manifest: Manifest) -> None:
        self.texts[manifest["metadata"]["name"]] = manifest["spec"]["scope"]
        self._changed.set()

    async def until(self, done: Callable[[dict[str, str]], bool]) -> float:
        """Wait, and return how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(DEADLINE_S):
            while not done(self.texts):
                self._changed.clear()
                await self._changed.wait()
        return loop.time() - began_s


def _all_are(wanted: set[str], texts: dict[str, str]) -> bool:
    return set(texts.values()) == wanted


def _edit(server: ApiServer, number: int, scope: str) -> None:
    server.edit(STREAMS, f"s{number}", {"spec": {"scope": scope}})


@pytest.mark.timeout(600)
async def test_changes_of_many_objects_are_heard_at_once() -> None:
    heard = _Heard()
    async with api_server() as (server, address):
        for number in range(OBJECTS):
            server.make(STREAMS, {"metadata": {"name": f"s{number}"}, "spec": {"scope": "first"}})
        watch = KopfWatch(client.Configuration(host=address), NAMESPACE, [(STREAMS, {})], heard.on_event)
        running = asyncio.create_task(watch.run())
        try:
            await heard.until(lambda texts: len(texts) == OBJECTS)
            times: list[float] = []
            for attempt in range(TRIES):
                for number in range(OBJECTS):
                    _edit(server, number, f"edit{attempt}")
                wanted = {f"edit{attempt}"}
                times.append(await heard.until(partial(_all_are, wanted)))
                print(f"{OBJECTS} edits were heard within {times[-1]:.2f} s")
                if times[-1] < BOUND_S:
                    break
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
    assert min(times) < BOUND_S
