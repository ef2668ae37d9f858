#!/usr/bin/env bash
# Runs the test suites one after the other, prints how long each took, and fails when any failed.
# Usage: run-suites.sh ci|full [SUITE...]     (SUITE: a folder below tests/, e.g. unit or compat/python)
# A suite that is named or listed here must exist, run at least one test and skip none.
set -u
cd "$(dirname "$0")/.." || exit 1
profile=${1:?usage: run-suites.sh ci|full [SUITE...]}
shift
python=${TAILRACE_PYTHON:-.venv/bin/python}
export TAILRACE_TEST_PROFILE=$profile

if [ $# -gt 0 ]; then
    suites=("$@")
else
    suites=(unit contract simulation compat/python compat/java e2e)
fi

# Suites whose tests start a MinIO server, built once here: it takes longer than a test may.
needs_minio() { case " ${suites[*]} " in *" contract "*|*" compat/"*|*" e2e "*) true ;; *) false ;; esac; }

output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
summary=()
status=0
if needs_minio; then
    started=$SECONDS
    PYTHON=$python tests/support/minio.sh || exit 1
    summary+=("$(printf '%-16s %5d s  ready' "MinIO server" $((SECONDS - started)))")
fi
for suite in "${suites[@]}"; do
    echo "== $suite ($profile)"
    started=$SECONDS
    "$python" -m pytest -q "tests/$suite" 2>&1 | tee "$output"
    code=${PIPESTATUS[0]}
    if [ "$code" -eq 0 ] && grep -qE '^[^ ]*[0-9]+ passed.*[0-9]+ skipped|^[0-9]+ skipped' "$output"; then
        code=skipped
    fi
    [ "$code" = 0 ] && result=passed || { result="FAILED ($code)"; status=1; }
    summary+=("$(printf '%-16s %5d s  %s' "$suite" $((SECONDS - started)) "$result")")
done
echo "== suites ($profile)"
printf '%s\n' "${summary[@]}"
exit $status
