"""The parts of the blocking facade; `tailrace.client.sync` joins them."""
