"""A blocking transaction that was decided inside its block is left alone at the block's end, as the asyncio one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.localtransport import LocalTransport
from tailrace.client import BlockingClient


def commit_inside(client: BlockingClient) -> None:
    with client.transactional_writer("s/t") as transactions, transactions.begin() as transaction:
        transaction.write_event(b"t", "key")
        transaction.commit()


def fail_after_commit(client: BlockingClient) -> None:
    with client.transactional_writer("s/t") as transactions, transactions.begin() as transaction:
        transaction.commit()
        raise KeyError("the application's own")


async def test_a_block_may_commit_by_itself(controller: Any) -> None:
    controller.begin((0, 0.0, 1.0))
    client = await asyncio.to_thread(BlockingClient, LocalTransport(controller.handle))
    try:
        await asyncio.to_thread(commit_inside, client)
        methods = [method for method, _ in controller.calls]
        assert methods.count("commitTransaction") == 1
        with pytest.raises(KeyError):
            await asyncio.to_thread(fail_after_commit, client)
        methods = [method for method, _ in controller.calls]
        assert methods.count("commitTransaction") == 2
        assert "abortTransaction" not in methods, "a committed transaction is not aborted"
    finally:
        await asyncio.to_thread(client.close)


async def test_a_failed_abort_does_not_hide_the_applications_error(controller: Any) -> None:
    from tailrace.rpc import controller_pb2 as pb

    controller.begin((0, 0.0, 1.0))
    controller.answers["abortTransaction"] = lambda _: pb.TxnStatus(status=pb.TxnStatus.FAILURE)

    def use(client: BlockingClient) -> None:
        with client.transactional_writer("s/t") as transactions, transactions.begin():
            raise KeyError("the application's own")

    client = await asyncio.to_thread(BlockingClient, LocalTransport(controller.handle))
    try:
        with pytest.raises(KeyError):
            await asyncio.to_thread(use, client)
    finally:
        await asyncio.to_thread(client.close)
