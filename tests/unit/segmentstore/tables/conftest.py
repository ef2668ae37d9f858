"""Containers that the table tests run over: the model, and the real one over a log and a store in memory."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore.api import SegmentContainer
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.tables.service import TableService
from tailrace.storage.obstores import open_object_store

SUPPORT = Path(__file__).parents[3] / "support"
Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[SegmentContainer]]


def _load(name: str) -> ModuleType:
    """A helper module of tests/support, loaded once by its path."""
    qualified = f"tailrace_tests_support_{name}"
    if qualified not in sys.modules:
        spec = importlib.util.spec_from_file_location(qualified, SUPPORT / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        spec.loader.exec_module(module)
    return sys.modules[qualified]


@pytest.fixture(scope="session")
def model_container() -> Any:
    """The class `ModelContainer`."""
    return _load("model_container").ModelContainer


@asynccontextmanager
async def open_real_container() -> AsyncIterator[Container]:
    """A real container with everything in memory."""
    store = open_object_store("memory://")
    cache = CacheManager(BlockCache(8 * limits.MIB))
    ports = ContainerPorts(
        log=MemoryLog(MemoryLogStore()),
        store=store,
        cache=cache,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        cluster_id=b"c" * 16,
    )
    container = Container(0, 1, ports)
    await container.start(b"n" * 16)
    try:
        yield container
    finally:
        await container.close()
        await store.close()


@pytest.fixture(scope="session", params=["model", "model that is often full", "real"])
def open_container(request: pytest.FixtureRequest, model_container: Any) -> Opener:
    """Opens an empty container of each kind."""

    @asynccontextmanager
    async def open_model() -> AsyncIterator[SegmentContainer]:
        yield model_container(refuse_every=2 if "full" in request.param else 0)

    return open_real_container if request.param == "real" else open_model


@pytest.fixture
async def container(open_container: Opener) -> AsyncIterator[SegmentContainer]:
    """An empty container."""
    async with open_container() as opened:
        yield opened


@pytest.fixture
async def real_container() -> AsyncIterator[Container]:
    """An empty real container, whose parts the test looks at."""
    async with open_real_container() as opened:
        yield opened


TABLE = "scope/table/0"


@pytest.fixture
def model(model_container: Any) -> Any:
    """An empty model."""
    return model_container()


@pytest.fixture
async def tables(model: Any) -> TableService:
    """The tables of the model; `TABLE` is one in hash layout."""
    service = TableService(model)
    await service.create_table(TABLE, 0)
    return service


async def turns(count: int = 20) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)
