"""The source of the resources' definitions. ``scripts/make_crds.py`` writes them to files.

See docs/design.md#resources.
"""
