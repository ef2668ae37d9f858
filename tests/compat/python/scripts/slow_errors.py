"""Errors that the client reports only after it has tried again for about a minute; each in a process of its own."""

import harness


def check_stream_without_segments() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    harness.error_of(ValueError, lambda: client.create_stream(scope, "stream", 0))


def check_empty_scope_name() -> None:
    harness.error_of(ValueError, lambda: harness.manager().create_scope(""))


def check_unknown_transaction() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    writer = client.create_transaction_writer(scope, "stream", 1)
    harness.error_of(ValueError, lambda: writer.get_txn(12345))


if __name__ == "__main__":
    harness.run(globals())
