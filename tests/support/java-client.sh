#!/usr/bin/env bash
# Prints the class path of the compatibility program in tests/compat/java and of the published Java client, built on first
# use into the user's cache, outside the repository. Needs a JDK 17 or later and Maven; downloads once, and is offline then.
# Errors are one line on standard error and exit code 1.
set -u
LIMIT_S=900

source=$(cd "$(dirname "$0")/../compat/java" && pwd) || exit 1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tailrace

fail() { echo "java client: $*" >&2; exit 1; }

for tool in java javac mvn; do
    command -v "$tool" >/dev/null 2>&1 || fail "needs $tool (packages openjdk-17-jdk-headless and maven)"
done
major=$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
[ "${major:-0}" -ge 17 ] || fail "needs a JDK 17 or later, found $(javac -version 2>&1) (package openjdk-17-jdk-headless)"

hash=$(cd "$source" && find pom.xml src -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16)
final=$cache/compat-java-$hash
done_path="$final/target/classes:$final/target/lib/*"
[ -e "$final/complete" ] && { echo "$done_path"; exit 0; }

mkdir -p "$cache" || fail "cannot write to $cache"
log=$cache/compat-java.log

# One build at a time; a process that waited finds it done.
exec 9>"$cache/compat-java.lock" || fail "cannot write to $cache"
flock -w "$LIMIT_S" 9 || fail "another build has not ended within $LIMIT_S s"
[ -e "$final/complete" ] && { echo "$done_path"; exit 0; }

staging=$(mktemp -d "$cache/compat-java.XXXXXX") || fail "cannot write to $cache"
trap 'rm -rf "$staging"' EXIT
cp -r "$source/pom.xml" "$source/src" "$staging/" || fail "cannot write to $staging"
timeout "$LIMIT_S" mvn --batch-mode --quiet --file "$staging/pom.xml" compiler:compile dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$staging/target/lib" >"$log" 2>&1 9>&- \
    || fail "the build failed; see $log: $(grep -m 1 ERROR "$log")"
touch "$staging/complete"
chmod 755 "$staging"
rm -rf "$final"
mv -T "$staging" "$final" || fail "cannot write to $final"
trap - EXIT
echo "$done_path"
