"""The parts of the blocking facade; `tailrace.client.blocking.client` joins them."""
