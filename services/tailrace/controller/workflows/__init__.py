"""Run the workflows: idempotent steps for persisted intents, and the drivers that run and resume them."""
