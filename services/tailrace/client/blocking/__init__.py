"""The client for programs without asyncio; `tailrace.client.blocking.client` is its entry point."""
