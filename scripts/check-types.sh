#!/usr/bin/env bash
# Checks types: strictly in services/, operator/ and the packages of pyproject.toml, less so in tests, examples and scripts.
set -eu
cd "$(dirname "$0")/.."
mypy=.venv/bin/mypy
others=("$mypy" --config-file tests/mypy.ini)

"$mypy"
"${others[@]}" tests examples scripts
# Programs that run elsewhere: beside the published Python client, and in pods. Their folder is where they import from.
MYPYPATH=tests/compat/python/scripts "${others[@]}" --cache-dir .mypy_cache/clients tests/compat/python/scripts/*.py
MYPYPATH=tests/e2e/kubernetes/programs "${others[@]}" --cache-dir .mypy_cache/programs tests/e2e/kubernetes/programs/*.py
