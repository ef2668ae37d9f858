"""The streaming cache of a worker: its bound, throttling of writers, reads through it."""
