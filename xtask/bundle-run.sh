#!/usr/bin/env bash
# Runs what needs a GPU and says what failed: the tests, with every PTX that this GPU takes, then the fuzzer. Arguments go to the tests;
# a name among them runs the tests alone that have it in theirs.
#
#   SANITIZE=memcheck     the tests under compute-sanitizer (or racecheck, synccheck, initcheck), with the PTX that ships for this GPU, and no
#                         fuzzer; the replay, which is long, is left out too. SPECDRAFT_FEW=1 (sizes that are few and small, but
#                         run every kernel) and SPECDRAFT_LIVES=200 are set unless they are set already, to nothing for all
#   PTX="ptx/nvvm/*.ptx"  other PTX files
#   FUZZ_SECONDS=60       how long the fuzzer runs, 0 for not at all
#   LIMIT=600             how many seconds each program may take
set -u
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
export CARGO_MANIFEST_DIR=$PWD
nvidia-smi --query-gpu=name,driver_version,compute_cap,clocks.sm --format=csv || exit 1
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
sanitize=${SANITIZE:-}
limit=${LIMIT:-600}

under=()
all_ptx=${PTX:-ptx/*/*.ptx}
fuzz_seconds=${FUZZ_SECONDS:-60}
if [[ -n $sanitize ]]; then
    sanitizer=compute-sanitizer/compute-sanitizer
    [[ -x $sanitizer ]] || sanitizer=$(command -v compute-sanitizer) || { echo "there is no compute-sanitizer"; exit 1; }
    # Fewer lives, cases and sizes, but every kernel: under a sanitizer a launch takes a hundred times as long.
    export SPECDRAFT_FEW=${SPECDRAFT_FEW-1} SPECDRAFT_LIVES=${SPECDRAFT_LIVES:-200}
    # The kernels' parameters are counted by asking until the driver says no: not an error.
    under=("$sanitizer" --tool "$sanitize" --error-exitcode 86)
    [[ $sanitize == memcheck ]] && under+=(--report-api-errors no)
    ships=sm_80
    [[ $capability == 9.0 ]] && ships=sm_90a
    all_ptx=${PTX:-ptx/nvvm/*.$ships.ptx}
    fuzz_seconds=0
fi

passed=0
failures=()
run() {
    local name=$1 status
    shift
    echo "==> $name"
    local start=$SECONDS
    timeout "$limit" "$@"
    status=$?
    echo "<== $name: status $status, $((SECONDS - start)) s"
    case $status in
        0) passed=$((passed + 1)) ;;
        124) failures+=("$name: not done after $limit s") ;;
        *) failures+=("$name: status $status") ;;
    esac
}

# Unquoted: a pattern.
for ptx in $all_ptx; do
    # An sm_90a text is for capability 9.0 alone.
    [[ $ptx == *sm_90a* && $capability != 9.0 ]] && continue
    for test in bin/test-gpu_*; do
        [[ -n $sanitize && $test == *gpu_replay ]] && continue
        run "$sanitize $ptx $test" env SPECDRAFT_PTX="$PWD/$ptx" ${under[@]+"${under[@]}"} "$test" --ignored --test-threads=1 "$@"
    done
done
if [[ $fuzz_seconds != 0 ]]; then
    run "fuzzer, $fuzz_seconds s" bin/specdraft-fuzz --backend cuda --seconds "$fuzz_seconds" --out fuzz
fi

echo "$passed passed, ${#failures[@]} failed"
for failure in ${failures[@]+"${failures[@]}"}; do
    echo "FAILED: $failure"
done
[[ ${#failures[@]} -eq 0 && $passed -gt 0 ]]
