"""Container images without an engine and without a registry (docs/images.md)."""


class ImageError(Exception):
    """An image cannot be made; the message says why in one line."""
