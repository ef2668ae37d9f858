"""The asyncio client and the blocking facade over it."""
