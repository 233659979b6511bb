#!/usr/bin/env bash
# Runs what needs a GPU and says what failed: the tests, with every PTX that this GPU takes, then the fuzzer. Arguments go to the tests;
# a name among them runs the tests alone that have it in theirs.
#
#   SANITIZE=memcheck     the tests under compute-sanitizer's tools (also racecheck, synccheck, initcheck, or several of them), with the PTX that
#                         ships for this GPU, and no fuzzer; the replay, which is long, is left out too. SPECDRAFT_FEW=1 (sizes that are
#                         few and small, but run every kernel) and SPECDRAFT_LIVES=40 are set unless they are set already, to nothing for all
#   PTX="ptx/nvvm/*.ptx"  other PTX files
#   FUZZ_SECONDS=60       how long the fuzzer runs, 0 for not at all
#   LIMIT=600             how many seconds each program may take
#   JOBS=1                how many programs run side by side. They share the GPU: with more than about six each takes far longer
#
# What a program prints is in logs/; of one that failed, the end is printed too.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
export CARGO_MANIFEST_DIR=$PWD
nvidia-smi --query-gpu=name,driver_version,compute_cap,clocks.sm --format=csv || exit 1
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
read -r -a tools <<<"${SANITIZE:-}"
limit=${LIMIT:-600}
jobs_wanted=${JOBS:-1}
all_ptx=${PTX:-ptx/*/*.ptx}
fuzz_seconds=${FUZZ_SECONDS:-60}
if [[ ${#tools[@]} -gt 0 ]]; then
    sanitizer=compute-sanitizer/compute-sanitizer
    [[ -x $sanitizer ]] || sanitizer=$(command -v compute-sanitizer) || { echo "there is no compute-sanitizer"; exit 1; }
    # Fewer lives, cases and sizes, but every kernel: under a sanitizer a launch takes a hundred times as long.
    export SPECDRAFT_FEW=${SPECDRAFT_FEW-1} SPECDRAFT_LIVES=${SPECDRAFT_LIVES:-40}
    ships=sm_80
    [[ $capability == 9.0 ]] && ships=sm_90a
    all_ptx=${PTX:-ptx/nvvm/*.$ships.ptx}
    fuzz_seconds=0
fi

rm -rf logs
mkdir logs
started=0
# Starts a program once there is room for it; its status goes to logs/results.
run() {
    local name=$1 log
    shift
    while [[ $(jobs -rp | wc -l) -ge $jobs_wanted ]]; do wait -n; done
    started=$((started + 1))
    log=logs/$started.log
    echo "==> $name ($log)"
    {
        local start=$SECONDS status
        timeout "$limit" "$@" >"$log" 2>&1
        status=$?
        echo "$status $name" >>logs/results
        [[ $status == 0 ]] || tail -n 30 "$log"
        echo "<== $name: status $status, $((SECONDS - start)) s"
    } &
}

tests() {
    local ptx=$1 tool=$2 test
    shift 2
    local under=()
    # The kernels' parameters are counted by asking until the driver says no: not an error.
    [[ -n $tool ]] && under=("$sanitizer" --tool "$tool" --error-exitcode 86)
    [[ $tool == memcheck ]] && under+=(--report-api-errors no)
    for test in bin/test-gpu_*; do
        [[ -n $tool && $test == *gpu_replay ]] && continue
        run "${tool:+$tool }$ptx $test" env SPECDRAFT_PTX="$PWD/$ptx" ${under[@]+"${under[@]}"} "$test" --ignored --test-threads=1 "$@"
    done
}

# Unquoted: a pattern.
for ptx in $all_ptx; do
    # An sm_90a text is for capability 9.0 alone.
    [[ $ptx == *sm_90a* && $capability != 9.0 ]] && continue
    for tool in "${tools[@]-}"; do
        tests "$ptx" "$tool" "$@"
    done
done
if [[ $fuzz_seconds != 0 ]]; then
    run "fuzzer, $fuzz_seconds s" bin/specdraft-fuzz --backend cuda --seconds "$fuzz_seconds" --out fuzz
fi
wait

passed=$(grep -c "^0 " logs/results)
failed=$((started - passed))
echo "$passed passed, $failed failed"
sed -n -e "s/^124 \(.*\)/FAILED: \1: not done after $limit s/p" -e "/^\(0\|124\) /!s/^\([0-9]*\) \(.*\)/FAILED: \2: status \1/p" logs/results
[[ $failed -eq 0 && $passed -gt 0 ]]
