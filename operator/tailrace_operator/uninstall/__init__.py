"""Removal of the operator, a release or a namespace."""
