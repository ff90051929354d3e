#!/usr/bin/env bash
# sanitize.sh TOOL PROGRAM DEVICE CASES: some small cases of the conformance suite under one tool of
# compute-sanitizer.
# Status 77 where there is none, or it cannot work on this machine.
set -euo pipefail

tool=$1 program=$2 device=$3 cases=$4

find_sanitizer() {
    local folder place
    if command -v compute-sanitizer; then return; fi
    for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-* /opt/cuda; do
        for place in bin compute-sanitizer extras/compute-sanitizer; do
            if [ -x "$folder/$place/compute-sanitizer" ]; then
                echo "$folder/$place/compute-sanitizer"
                return
            fi
        done
    done
}

if [ "${device%%:*}" != cuda ]; then
    echo "compute-sanitizer is for CUDA"
    exit 77
fi
sanitizer=$(find_sanitizer)
if [ -z "$sanitizer" ]; then
    echo "compute-sanitizer was not found"
    exit 77
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Cases that make the driver refuse something are no errors: only what kernels do is looked at.
status=0
"$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 86 --print-limit 20 \
    "$program" --device "$device" --require --small --only "$cases" 2>&1 | tee "$log" || status=$?
if grep -q -e 'Device not supported' -e 'not supported on this' "$log"; then
    echo "compute-sanitizer cannot work on this machine"
    exit 77
fi
summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1 || true)
echo "${summary:-no summary from $tool}"
if [ "$status" = 0 ] && [ -z "$summary" ]; then exit 1; fi
exit "$status"
