#!/usr/bin/env bash
# Says in one line what this machine lacks for building Tailrace, and the Debian package that brings it; exit 1 then.
# Usage: check-host.sh PYTHON
set -u
python=${1:?usage: check-host.sh PYTHON}

missing() { printf 'tailrace: missing %s\n' "$1" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 \
    || missing "Python 3.11 or later ($python not found): install the package python3, or set PYTHON=/path/to/python3.11"
found=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null) \
    || missing "a working Python ($python does not start): install the package python3, or set PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || missing "Python 3.11 or later ($python is $found): install the package python3.11, or set PYTHON=/path/to/python3.11"
series=${found%.*}
"$python" -c 'import venv, ensurepip' 2>/dev/null \
    || missing "the venv module of $python: install the package python$series-venv"
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -f "$headers/Python.h" ] \
    || missing "the C headers of $python ($headers/Python.h): install the package python$series-dev"
compiler=${CC:-cc}
command -v "${compiler%% *}" >/dev/null 2>&1 \
    || missing "a C compiler ($compiler not found): install the package gcc"
probe=$(mktemp -d) || exit 1
trap 'rm -rf "$probe"' EXIT
printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' >"$probe/probe.c"
$compiler -o "$probe/probe" "$probe/probe.c" >/dev/null 2>&1 \
    || missing "the C library headers ($compiler cannot build a program): install the package libc6-dev"
command -v make >/dev/null 2>&1 || missing "make: install the package make"
