#!/usr/bin/env bash
# Prints the path of a Python interpreter whose environment holds the published Python client, made on first use in the
# user's cache, outside the repository. Errors are one line on standard error and exit code 1.
# PYTHON is an interpreter to try first; the client's only wheel is for CPython 3.11.
set -u
LIMIT_S=300

lock=$(dirname "$0")/../compat/python/requirements.lock
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tailrace

fail() { echo "python client: $*" >&2; exit 1; }

is_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

[ -r "$lock" ] || fail "no $lock"
final=$cache/compat-python-$(sha256sum "$lock" | cut -c1-16)
[ -x "$final/bin/python" ] && [ -e "$final/complete" ] && { echo "$final/bin/python"; exit 0; }

interpreter=
for candidate in "${PYTHON:-python3}" python3.11 python3; do
    if is_311 "$candidate"; then interpreter=$candidate; break; fi
done
[ -n "$interpreter" ] || fail "needs Python 3.11 (its only wheel is for it), and there is no python3.11"

mkdir -p "$cache" || fail "cannot write to $cache"
log=$cache/compat-python.log

# One installation at a time; a process that waited finds it done. A venv cannot be moved, hence the mark of completion.
exec 9>"$cache/compat-python.lock" || fail "cannot write to $cache"
flock -w "$LIMIT_S" 9 || fail "another installation has not ended within $LIMIT_S s"
[ -e "$final/complete" ] && { echo "$final/bin/python"; exit 0; }

rm -rf "$final"
"$interpreter" -m venv "$final" >"$log" 2>&1 || fail "cannot make a venv; see $log"
timeout "$LIMIT_S" "$final/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
    -r "$lock" >>"$log" 2>&1 9>&- || fail "cannot install the client; see $log: $(tail -n 1 "$log")"
"$final/bin/python" -c 'import pravega_client' >>"$log" 2>&1 \
    || fail "the client does not load (it needs x86-64 and glibc 2.35 or later); see $log"
touch "$final/complete"
echo "$final/bin/python"
