"""The blocking client offers what the asyncio client does: names, arguments, and what they are."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from typing import Any, Final

import pytest

from tailrace import client
from tailrace.client import blocking
from tailrace.client.blocking.client import BlockingClient
from tailrace.client.blocking.manage import BlockingReaderGroup, BlockingReaderGroupManager, BlockingStreamManager
from tailrace.client.blocking.read import BlockingByteStreamReader, BlockingEventReader
from tailrace.client.blocking.shared_state import BlockingRevisionedStream, BlockingTable
from tailrace.client.blocking.write import (
    BlockingByteStreamWriter,
    BlockingEventWriter,
    BlockingTransaction,
    BlockingTransactionalWriter,
)

PAIRS: Final[list[tuple[type, type]]] = [
    (client.ByteStreamReader, BlockingByteStreamReader),
    (client.ByteStreamWriter, BlockingByteStreamWriter),
    (client.Client, BlockingClient),
    (client.EventReader, BlockingEventReader),
    (client.EventWriter, BlockingEventWriter),
    (client.KeyValueTable, BlockingTable),
    (client.ReaderGroup, BlockingReaderGroup),
    (client.ReaderGroupManager, BlockingReaderGroupManager),
    (client.RevisionedStream, BlockingRevisionedStream),
    (client.StreamManager, BlockingStreamManager),
    (client.Transaction, BlockingTransaction),
    (client.TransactionalWriter, BlockingTransactionalWriter),
]
OTHERWISE: Final = {
    ("*", "start"): "the blocking client returns started objects",
    ("EventReader", "take_back"): "a blocking read does it by itself, for a caller that was interrupted",
    ("EventWriter", "ready"): "a blocking write waits for room by itself",
    ("Transaction", "ready"): "as of EventWriter",
    ("Transaction", "noted_time"): "for the writer of the transaction",
    ("Transaction", "stop_pinging"): "the part of abandon that may not wait",
}
"""Public names of asyncio classes that their blocking form does not have, with the reason."""
NOT_FOR_APPLICATIONS: Final = {"ClientContext", "ControllerClient", "SegmentClient", "SegmentReader"}
"""Classes with coroutines that only coroutines given to `BlockingClient.run` use."""


def public(kind: type) -> set[str]:
    """The public names of a class: methods, properties, and attributes that its constructor sets."""
    names = {name for name in dir(kind) if not name.startswith("_")}
    for base in kind.__mro__:
        made = base.__dict__.get("__init__")
        if inspect.isfunction(made):
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(made)))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    names.add(node.attr)
    return {name for name in names if not name.startswith("_")}


def is_otherwise(kind: type, name: str) -> bool:
    return (kind.__name__, name) in OTHERWISE or ("*", name) in OTHERWISE


def arguments(call: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(call).parameters.values()]


@pytest.mark.parametrize(("kind", "form"), PAIRS, ids=lambda kind: kind.__name__)
def test_a_blocking_class_has_the_names_of_its_asyncio_class(kind: type, form: type) -> None:
    missing = {name for name in public(kind) - public(form) if not is_otherwise(kind, name)}
    assert not missing, f"{form.__name__} lacks {sorted(missing)}"


@pytest.mark.parametrize(("kind", "form"), PAIRS, ids=lambda kind: kind.__name__)
def test_calls_take_the_same_arguments(kind: type, form: type) -> None:
    for name in sorted(public(kind) & public(form)):
        theirs, ours = (getattr(each, name, None) for each in (kind, form))
        assert inspect.isfunction(theirs) == inspect.isfunction(ours), f"{name} is a call in one of them only"
        if inspect.isfunction(theirs) and inspect.isfunction(ours):
            assert arguments(theirs) == arguments(ours), name
            assert not inspect.iscoroutinefunction(ours), name


@pytest.mark.parametrize(("kind", "form"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_async_with_ends_with_ends(kind: type, form: type) -> None:
    assert hasattr(kind, "__aenter__") == hasattr(form, "__enter__")
    assert hasattr(kind, "__aexit__") == hasattr(form, "__exit__")


def test_exceptions_are_those_that_are_left() -> None:
    by_name = {kind.__name__: (kind, form) for kind, form in PAIRS}
    for owner, name in OTHERWISE:
        pairs = PAIRS if owner == "*" else [by_name[owner]]
        assert any(name in public(kind) - public(form) for kind, form in pairs), f"{owner}.{name} is no exception"


def test_each_asyncio_class_has_a_blocking_form() -> None:
    kinds = {getattr(client, name) for name in client.__all__}
    asynchronous = {
        kind
        for kind in kinds
        if inspect.isclass(kind) and any(inspect.iscoroutinefunction(getattr(kind, name)) for name in dir(kind))
    }
    left = {kind.__name__ for kind in asynchronous} - {kind.__name__ for kind, _ in PAIRS}
    assert left == NOT_FOR_APPLICATIONS


def test_each_blocking_class_is_compared() -> None:
    compared = {form for _, form in PAIRS}
    for module in pkgutil.iter_modules(blocking.__path__):
        for name, found in vars(importlib.import_module(f"{blocking.__name__}.{module.name}")).items():
            if inspect.isclass(found) and re.match(r"Blocking[A-Z]", name):
                assert found in compared, name
