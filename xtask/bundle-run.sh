#!/usr/bin/env bash
# Runs every GPU test with every PTX that this GPU takes. Arguments go to the tests.
# With SANITIZE=memcheck (racecheck, synccheck, initcheck) each runs under compute-sanitizer.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
export CARGO_MANIFEST_DIR=$PWD
nvidia-smi --query-gpu=name,driver_version,compute_cap,clocks.sm --format=csv || exit 1
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)

under=()
if [[ -n ${SANITIZE:-} ]]; then
    # The kernels' parameters are counted by asking until the driver says no: not an error.
    under=(compute-sanitizer/compute-sanitizer --tool "$SANITIZE" --error-exitcode 86)
    [[ $SANITIZE == memcheck ]] && under+=(--report-api-errors no)
fi

passed=0
failed=0
for ptx in ptx/*/*.ptx; do
    # An sm_90a text is for capability 9.0 alone.
    [[ $ptx == *sm_90a* && $capability != 9.0 ]] && continue
    for test in bin/test-gpu_*; do
        echo "==> ${SANITIZE:-} $ptx $test"
        if SPECDRAFT_PTX=$PWD/$ptx "${under[@]}" "$test" --ignored --test-threads=1 "$@"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "FAILED: ${SANITIZE:-} $ptx $test"
        fi
    done
done
echo "$passed passed, $failed failed"
[[ $failed -eq 0 && $passed -gt 0 ]]
