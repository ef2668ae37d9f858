"""The demo of ``make run``: stream a real data set, kill the server midway, and check every event."""
