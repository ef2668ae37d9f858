"""Scaling 1 → 3 → 2 while two readers read and a writer writes."""

import harness


def check_one_three_two_while_reading() -> None:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", 1)
    names = harness.keys(24)
    client.create_reader_group("group", scope, "stream")
    readers = harness.Readers(scope, "stream", "group", 2)
    writer = harness.Worker("write", scope, "stream", str(len(names)), "100")
    writer.wait_for("connected")
    writer.tell("go")
    rounds = 60 if harness.FULL else 20

    def write_more() -> None:
        goal = writer.rounds() + rounds
        harness.wait_until(lambda: writer.rounds() >= goal, "the writer going on", 90)

    write_more()
    readers.wait_for(rounds * len(names) // 2)
    assert client.update_stream_with_policy(scope, "stream", harness.fixed(3), harness.no_retention(), None) is True
    assert len(harness.tail_segments(client, scope, "stream")) == 3
    write_more()
    # A manual scale must not go below the minimum of the policy.
    rate = harness.pravega_client.StreamScalingPolicy.auto_scaling_policy_by_event_rate(1_000_000, 2, 1)
    assert client.update_stream_with_policy(scope, "stream", rate, harness.no_retention(), None) is True
    harness.scale(scope, "stream", 2)
    harness.wait_until(lambda: len(harness.tail_segments(client, scope, "stream")) == 2, "two segments")
    write_more()
    writer.stop()
    total = writer.result()["rounds"]
    readers.wait_for(total * len(names), 120)
    readers.check_nothing_more()
    harness.check_exactly_once(readers.read(), names, total)


if __name__ == "__main__":
    harness.run(globals())
