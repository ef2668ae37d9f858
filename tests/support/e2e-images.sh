#!/usr/bin/env bash
# Makes every image that the tests on a cluster run, of what the repository holds now; prints them. Needs the native kernel
# built (make setup). Errors are one line on standard error and exit code 1.
set -u
cd "$(dirname "$0")/../.." || exit 1
exec "${PYTHON:-.venv/bin/python}" scripts/make_images.py all
