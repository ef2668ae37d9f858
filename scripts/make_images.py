#!/usr/bin/env python3
"""Makes container images without an engine and without a registry (docs/images.md).

    make_images.py [--again] [NAME...]

NAME is tailrace (the default), tailrace-spark, tailrace-test, tailrace-test-java, minio, or all; archives go to
build/images/NAME.tar. A line is printed of each: name with tag, archive, length in MB, digest of the manifest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from imagebuild import ImageError
from imagebuild.images import IMAGES, REPOSITORY, make_all
from pack_image import PackError


def main() -> int:
    """Exit code 1 and one line on standard error when an image cannot be made."""
    parser = argparse.ArgumentParser(description="Makes container images without an engine and without a registry.")
    parser.add_argument("--again", action="store_true", help="renew Debian packages and dependencies")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"{', '.join(IMAGES)}, or all (default: tailrace)")
    options = parser.parse_args()
    names = list(IMAGES) if "all" in options.names else list(dict.fromkeys(options.names)) or ["tailrace"]
    unknown = [name for name in names if name not in IMAGES]
    if unknown:
        parser.error(f"no image {unknown[0]}; there are {', '.join(IMAGES)}")
    try:
        for tag, archive, digest in make_all(names, options.again):
            print(f"{tag}  {archive.relative_to(REPOSITORY)}  {archive.stat().st_size / 1e6:.0f} MB  {digest}")
    except (ImageError, PackError, OSError, subprocess.TimeoutExpired) as error:
        print(f"make_images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
