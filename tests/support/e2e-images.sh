#!/usr/bin/env bash
# Makes every image that the short form of the tests on a cluster runs, of what the repository holds now; prints them. Needs the native kernel
# built (make setup). Errors are one line on standard error and exit code 1.
set -u
cd "$(dirname "$0")/../.." || exit 1
exec "${PYTHON:-.venv/bin/python}" scripts/make_images.py tailrace tailrace-test tailrace-test-java minio
