"""What ``make run`` does: a real data set through a real server that dies once midway, then every event is checked."""
