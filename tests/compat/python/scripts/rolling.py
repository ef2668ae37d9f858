"""Transactions that are open over scales: commits add epochs, which two readers cross."""

import harness

EPOCHS = 6 if harness.FULL else 3
EVENTS = 10
"""Of each key in each transaction, and of each plain key between two scales."""


def check_transactions_over_scales() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 2)
    in_transactions = harness.keys(12)
    plain = [f"plain-{name}" for name in in_transactions]
    client.create_reader_group("group", scope, "stream")
    readers = harness.Readers(scope, "stream", "group", 2)
    transactional = client.create_transaction_writer(scope, "stream", 1)
    writer = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    opened = []
    for epoch in range(EPOCHS):
        transaction = transactional.begin_txn()
        for sequence in range(epoch * EVENTS, (epoch + 1) * EVENTS):
            for name in in_transactions:
                transaction.write_event_bytes(harness.event(name, sequence, 100), routing_key=name)
        opened.append(transaction)
        harness.write_keyed(writer, plain, epoch * EVENTS, (epoch + 1) * EVENTS)
        harness.scale(scope, "stream", 3 if epoch % 2 == 0 else 2)
    before_commits = harness.tail_segments(client, scope, "stream")
    for transaction in opened:
        transaction.commit()
        harness.wait_until(lambda: not transaction.is_open(), "the transaction being over")  # noqa: B023
    harness.wait_until(
        lambda: harness.tail_segments(client, scope, "stream").isdisjoint(before_commits), "epochs that commits add"
    )
    harness.write_keyed(writer, plain, EPOCHS * EVENTS, (EPOCHS + 1) * EVENTS)
    expected = len(in_transactions) * EPOCHS * EVENTS + len(plain) * (EPOCHS + 1) * EVENTS
    readers.wait_for(expected, 120)
    readers.check_nothing_more()
    read = readers.read()
    harness.check_exactly_once([each for each in read if each[0] in in_transactions], in_transactions, EPOCHS * EVENTS)
    harness.check_exactly_once([each for each in read if each[0] not in in_transactions], plain, (EPOCHS + 1) * EVENTS)


if __name__ == "__main__":
    harness.run(globals())
