#!/usr/bin/env bash
# Runs the test suites one after the other, prints how long each took, and fails when any failed.
# Usage: run-suites.sh ci|full [SUITE...]     (SUITE: a folder below tests/, e.g. unit or compat/python)
# e2e/cluster and e2e/kubernetes are not run unless named: they need root or a cluster (docs/testing-on-kubernetes.md).
# A suite that is named or listed here must exist, run at least one test and skip none. `spec` checks the models in spec/.
set -u
cd "$(dirname "$0")/.." || exit 1
profile=${1:?usage: run-suites.sh ci|full [SUITE...]}
shift
python=${TAILRACE_PYTHON:-.venv/bin/python}
export TAILRACE_TEST_PROFILE=$profile

if [ $# -gt 0 ]; then
    suites=("$@")
else
    suites=(unit images contract spec simulation cli crash compat/wire compat/python compat/java e2e/local e2e/pods)
fi

output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
summary=()
status=0

# note NAME STARTED RESULT
note() { summary+=("$(printf '%-18s %5d s  %s' "$1" $((SECONDS - $2)) "$3")"); }

# One suite by pytest. A skipped test is not shown, so it counts as a failure.
by_pytest() {
    local started=$SECONDS result=passed code options=()
    [ "$1" = e2e/kubernetes ] && options=(-o faulthandler_timeout=0)  # a test there may take longer than others may
    echo "== $1 ($profile)"
    "$python" -m pytest -q "${options[@]}" "tests/$1" 2>&1 | tee "$output"
    code=${PIPESTATUS[0]}
    if [ "$code" -ne 0 ]; then
        result="FAILED ($code)"
    elif grep -qE '^[0-9].* skipped' "$output"; then
        result="FAILED (tests were skipped)"
    fi
    [ "$result" = passed ] || status=1
    note "$1" "$started" "$result"
}

# Seeds of the simulator: the same ones in CI, others in the long form.
by_seeds() {
    local started=$SECONDS result=passed first=0 seconds=120 faults=(--every-fault 20)
    [ "$profile" = full ] && { first=$((RANDOM * 32768 + RANDOM)); seconds=900; faults=(); }
    echo "== seeds of the simulator ($profile)"
    "$python" tests/simulation/run.py --first "$first" --seconds "$seconds" "${faults[@]}" --jobs "$(nproc)" || { result="FAILED ($?)"; status=1; }
    note "simulator seeds" "$started" "$result"
}

# Planted bugs, which the simulator must find: ten by date in CI, so that each has its turn; all in the long form.
by_bugs() {
    local started=$SECONDS result=passed chosen=(--bugs-of "$(date -u +%F)")
    [ "$profile" = full ] && chosen=(--bug all)
    echo "== planted bugs ($profile)"
    "$python" tests/simulation/run.py "${chosen[@]}" --jobs "$(nproc)" || { result="FAILED ($?)"; status=1; }
    note "planted bugs" "$started" "$result"
}

# The models of the specification, good and faulty ones.
by_models() {
    local started=$SECONDS result=passed jar
    echo "== specification ($profile)"
    jar=$(PYTHON=$python tests/support/tlc.sh) && "$python" scripts/check_spec.py "$jar" || { result="FAILED ($?)"; status=1; }
    note spec "$started" "$result"
}

# What takes longer to build or download than a test may last is made ready here, once for the suites that need it.
# prepare NAME SCRIPT SUITE...
prepare() {
    local name=$1 script=$2 started=$SECONDS suite
    shift 2
    for suite in "$@"; do
        case " ${suites[*]} " in
            *" $suite "*)
                PYTHON=$python "tests/support/$script" >/dev/null || exit 1
                note "$name" "$started" ready
                return
                ;;
        esac
    done
}
prepare "MinIO server" minio.sh images contract crash compat/python compat/java e2e/local e2e/pods e2e/kubernetes
prepare "Python client" python-client.sh compat/python
prepare "Java client" java-client.sh images compat/java crash e2e/local e2e/kubernetes
# The cluster's own tests always need the local one, the others only when no other cluster is named.
if [ -n "${E2E_KUBECONFIG:-}" ]; then
    prepare "local cluster" local-cluster.sh e2e/cluster
else
    prepare "local cluster" local-cluster.sh e2e/cluster e2e/kubernetes
    prepare "images" e2e-images.sh e2e/kubernetes
fi

for suite in "${suites[@]}"; do
    if [ "$suite" = spec ]; then by_models; else by_pytest "$suite"; fi
    [ "$suite" = simulation ] && { by_seeds; by_bugs; }
done
echo "== suites ($profile)"
printf '%s\n' "${summary[@]}"
exit $status
