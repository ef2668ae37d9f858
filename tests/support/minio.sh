#!/usr/bin/env bash
# Prints the path of a MinIO server binary, building it on first use into the user's cache, outside the repository.
# Errors are one line on standard error and exit code 1; the compiler's output is kept beside the cache for reading.
# PYTHON is the interpreter whose pip brings a Go toolchain where none of GO_MIN or later is present.
set -u
VERSION=v0.0.0-20260212201848-7aac2a2c5b7c
BUILD_LIMIT_S=1500

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tailrace
final=$cache/minio-$VERSION
python=${PYTHON:-python3}

fail() { echo "minio: $*" >&2; exit 1; }

[ -x "$final/minio" ] && { echo "$final/minio"; exit 0; }
mkdir -p "$cache" || fail "cannot write to $cache"
log=$cache/minio-build.log

# One build at a time; a process that waited finds it done.
exec 9>"$cache/minio.lock" || fail "cannot write to $cache"
flock -w "$BUILD_LIMIT_S" 9 || fail "another build of MinIO has not ended within $BUILD_LIMIT_S s"
[ -x "$final/minio" ] && { echo "$final/minio"; exit 0; }

go=$(PYTHON=$python "$(dirname "$0")/go.sh" 9>&-) || exit 1
staging=$(mktemp -d "$cache/minio.XXXXXX") || fail "cannot write to $cache"
trap 'rm -rf "$staging"' EXIT
echo "minio: building $VERSION (minutes, once)" >&2
GOTOOLCHAIN=local GOFLAGS=-trimpath CGO_ENABLED=0 GOBIN=$staging timeout "$BUILD_LIMIT_S" \
    nice "$go" install "github.com/minio/minio@$VERSION" >"$log" 2>&1 9>&- \
    || fail "go install failed; see $log: $(tail -n 1 "$log")"
"$staging/minio" --version >/dev/null 2>&1 || fail "the binary that was built does not start"
chmod 755 "$staging"
rm -rf "$final"
mv -T "$staging" "$final" || fail "cannot write to $final"
trap - EXIT
echo "$final/minio"
