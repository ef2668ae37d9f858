#!/usr/bin/env bash
# Checks types: strictly in services/, operator/ and the packages of pyproject.toml, less so in tests, examples and scripts.
set -eu
cd "$(dirname "$0")/.."
mypy=.venv/bin/mypy
others=("$mypy" --config-file tests/mypy.ini)
# Kept outside of the clone: mypy compares contents, so that another clone checks only what differs. One folder for each
# set of options, because modules checked with other options count as changed.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tailrace/mypy

"$mypy" --cache-dir "$cache/strict"
"${others[@]}" --cache-dir "$cache/others" tests examples scripts
# Programs that run elsewhere: beside the published Python client, and in pods. Their folder is where they import from.
MYPYPATH=tests/compat/python/scripts "${others[@]}" --cache-dir "$cache/clients" tests/compat/python/scripts/*.py
MYPYPATH=tests/e2e/kubernetes/programs "${others[@]}" --cache-dir "$cache/programs" tests/e2e/kubernetes/programs/*.py
