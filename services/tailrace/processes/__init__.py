"""The processes of Tailrace: standalone server, pods, worker processes and their watchdog."""
