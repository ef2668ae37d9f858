"""Map each call to the resource and access level that authorization checks.

See docs/protocol/controller.md#authorization.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.common import names
from tailrace.common.auth import AccessLevel
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

ROOT: Final = "prn::/"
_READ: Final = AccessLevel.READ
_UPDATE: Final = AccessLevel.READ_UPDATE


class Access(NamedTuple):
    """The resource of a request, its scope for accounting ("" for none), and the level."""

    resource: str
    scope: str
    level: AccessLevel


def scope_resource(scope: str) -> str:
    """Resource of a scope."""
    return f"{ROOT}scope:{scope}"


def stream_resource(scope: str, stream: str) -> str:
    """Resource of a stream. An internal stream counts as the reader group or stream that it serves.

    See docs/protocol/controller.md#authorization.
    """
    if stream.startswith(names.READER_GROUP_PREFIX):
        return f"{scope_resource(scope)}/reader-group:{stream.removeprefix(names.READER_GROUP_PREFIX)}"
    return f"{scope_resource(scope)}/stream:{stream.removeprefix(names.MARK_PREFIX)}"


def _root(level: AccessLevel, scope_of: Callable[[Any], str] = lambda _: "") -> Callable[[Any], Access]:
    return lambda request: Access(ROOT, scope_of(request), level)


def _scope(level: AccessLevel, scope_of: Callable[[Any], str]) -> Callable[[Any], Access]:
    return lambda request: Access(scope_resource(scope_of(request)), scope_of(request), level)


def _stream(level: AccessLevel, info_of: Callable[[Any], pb.StreamInfo]) -> Callable[[Any], Access]:
    def access(request: Any) -> Access:
        info = info_of(request)
        return Access(stream_resource(info.scope, info.stream), info.scope, level)

    return access


def _group(level: AccessLevel, name_of: Callable[[Any], str]) -> Callable[[Any], Access]:
    return lambda request: Access(
        f"{scope_resource(request.scope)}/reader-group:{name_of(request)}", request.scope, level
    )


def _table(level: AccessLevel) -> Callable[[Any], Access]:
    return lambda request: Access(
        f"{scope_resource(request.scope)}/key-value-table:{request.kvtName}", request.scope, level
    )


def _subscriber(request: Any) -> Access:
    scope, _, group = request.subscriber.partition("/")
    return Access(f"{scope_resource(scope)}/reader-group:{group}", scope, _READ)


def _itself(request: Any) -> pb.StreamInfo:
    assert isinstance(request, pb.StreamInfo)
    return request


def _names(request: Any) -> pb.StreamInfo:
    return pb.StreamInfo(scope=request.scope, stream=request.stream)


def _info(request: Any) -> pb.StreamInfo:
    info = request.streamInfo
    assert isinstance(info, pb.StreamInfo)
    return info


RULES: Final[dict[str, Callable[[Any], Access] | None]] = {
    "getControllerServerList": None,
    "getControllerToBucketMapping": _root(_READ),
    "getURI": _stream(_READ, _info),
    "getDelegationToken": _stream(_READ, _itself),
    "createScope": _root(_UPDATE, lambda request: str(request.scope)),
    "deleteScope": _root(_UPDATE, lambda request: str(request.scope)),
    "deleteScopeRecursive": _root(_UPDATE, lambda request: str(request.scope)),
    "listScopes": _root(_READ),
    "checkScopeExists": _scope(_READ, lambda request: str(request.scope)),
    "createStream": _scope(_UPDATE, lambda request: str(request.streamInfo.scope)),
    "updateStream": _stream(_UPDATE, _info),
    "truncateStream": _stream(_UPDATE, _info),
    "sealStream": _stream(_UPDATE, _itself),
    "deleteStream": _scope(_UPDATE, lambda request: str(request.scope)),
    "getStreamConfiguration": _stream(_READ, _itself),
    "checkStreamExists": _stream(_READ, _itself),
    "listStreamsInScope": _scope(_READ, lambda request: str(request.scope.scope)),
    "listStreamsInScopeForTag": _scope(_READ, lambda request: str(request.scope.scope)),
    "getCurrentSegments": _stream(_READ, _itself),
    "getEpochSegments": _stream(_READ, _info),
    "getSegments": _stream(_READ, _info),
    "getSegmentsImmediatelyFollowing": _stream(_READ, _info),
    "getSegmentsImmediatlyFollowing": _stream(_READ, _info),
    "getSegmentsBetween": _stream(_READ, _info),
    "isSegmentValid": _stream(_READ, _info),
    "isStreamCutValid": _stream(_READ, _info),
    "scale": _stream(_UPDATE, _info),
    "checkScale": _stream(_READ, _info),
    "createTransaction": _stream(_UPDATE, _info),
    "pingTransaction": _stream(_UPDATE, _info),
    "commitTransaction": _stream(_UPDATE, _info),
    "abortTransaction": _stream(_UPDATE, _info),
    "checkTransactionState": _stream(_READ, _info),
    "listCompletedTransactions": _stream(_READ, _info),
    "noteTimestampFromWriter": _stream(_UPDATE, lambda request: request.position.streamInfo),
    "removeWriter": _stream(_UPDATE, lambda request: request.stream),
    "createReaderGroup": _group(_READ, lambda request: str(request.readerGroupName)),
    "getReaderGroupConfig": _group(_READ, lambda request: str(request.readerGroup)),
    "updateReaderGroup": _group(_READ, lambda request: str(request.readerGroupName)),
    "deleteReaderGroup": _group(_READ, lambda request: str(request.readerGroup)),
    "listSubscribers": _stream(_READ, _itself),
    "updateSubscriberStreamCut": _subscriber,
    "createKeyValueTable": _scope(_UPDATE, lambda request: str(request.scope)),
    "deleteKeyValueTable": _scope(_UPDATE, lambda request: str(request.scope)),
    "getKeyValueTableConfiguration": _table(_READ),
    "getCurrentSegmentsKeyValueTable": _table(_READ),
    "listKeyValueTablesInScope": _scope(_READ, lambda request: str(request.scope.scope)),
    "describeStream": _stream(_READ, _names),
    "streamReports": _root(_READ),
    "claimStream": _stream(_UPDATE, _names),
    "deleteOwnedStream": _stream(_UPDATE, _names),
    "getSubscriberCut": _stream(_READ, _names),
    "streamHistory": _stream(_READ, _names),
    "streamCuts": _stream(_READ, _names),
}
"""Rules by the name of the call; None needs no authorization."""


def access_of(rpc: str, request: Message) -> Access | None:
    """Return the resource and level of a request; None when it needs no authorization."""
    rule = RULES[rpc]
    return None if rule is None else rule(request)
