"""Calls to the controller, by subject (controller §4); `controller` joins them in one client."""
