"""Calls to the controller, by subject (controller §4); `tailrace.client.controller` joins them in one client."""
