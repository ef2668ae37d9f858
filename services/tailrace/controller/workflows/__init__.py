"""Workflows of streams: idempotent steps behind persisted intents, and the driver that runs and resumes them."""
