"""What the suites of real processes share: a server that can be killed, a recorded workload, and its checker."""
