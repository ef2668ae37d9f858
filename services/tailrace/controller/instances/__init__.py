"""The live controllers, and which of them owns which bucket of work."""
