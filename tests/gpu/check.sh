#!/usr/bin/env bash
# Proves and measures the library on a real GPU, in one call that ends within nine minutes.
#
#   tests/gpu/check.sh OUTDIR [--device cuda:N|hip:N] [--budget SECONDS] [--all-targets]
#                      [--work FOLDER] [--build FOLDER] [--dry-run FOLDER]
#
#   OUTDIR         gets results.json, results.md and check.log, from the first stage on
#   --device       default: cuda:0 if it is there, else hip:0
#   --budget       for everything; default 520. Stages that no longer fit are skipped
#   --all-targets  kernels for every GPU, not only for the one that is there
#   --work         where it builds; default build/gpu in the repository
#   --build        an existing build with conformance and gpu_bench; nothing is built
#   --dry-run      a folder of simulated drivers: small sizes, and figures that mean nothing
#
# It needs bash, CMake, a C compiler, and nvcc, hipcc or clang; no network. PyTorch ($PYTHON, else
# python3) and compute-sanitizer are used where they are found.
# Status: 0 all passed, 1 something failed, 2 wrong arguments, 77 no GPU here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/gpu

usage() {
    sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

die() {
    echo "check.sh: $*" >&2
    exit 2
}

out='' device='' work='' build='' simulators='' budget=520 all_targets=no
while [ $# -gt 0 ]; do
    case $1 in
        --all-targets) all_targets=yes ;;
        -h | --help) usage; exit 0 ;;
        --device | --budget | --work | --build | --dry-run)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
                --device) device=$2 ;;
                --budget) budget=$2 ;;
                --work) work=$2 ;;
                --build) build=$2 ;;
                --dry-run) simulators=$2 ;;
            esac
            shift ;;
        -*) die "unknown option $1 (--help tells)" ;;
        *) [ -z "$out" ] || die "one output folder, not \"$out\" and \"$1\""; out=$1 ;;
    esac
    shift
done
[ -n "$out" ] || { usage >&2; exit 2; }
[[ $budget =~ ^[0-9]+$ ]] || die "--budget is a number of seconds, not \"$budget\""
[[ -z $device || $device =~ ^(cuda|hip):[0-9]+$ ]] || die "--device is cuda:N or hip:N, not \"$device\""
work=${work:-$root/build/gpu}
mkdir -p "$out" "$work"
out=$(cd "$out" && pwd)
work=$(cd "$work" && pwd)
if [ -n "$build" ]; then build=$(cd "$build" && pwd); fi
python=${PYTHON:-python3}
small=() rounds=15 torch=("$python")
if [ -n "$simulators" ]; then
    simulators=$(cd "$simulators" && pwd)
    export LD_LIBRARY_PATH=$simulators${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    small=(--small)
    rounds=2
    torch=(env -u LD_LIBRARY_PATH "$python") # which knows no simulated driver
fi

# --- is there a GPU ------------------------------------------------------------------------------

compiler=''
for candidate in "${CC:-cc}" gcc clang; do
    if command -v "$candidate" >/dev/null 2>&1; then
        compiler=$candidate
        break
    fi
done
[ -n "$compiler" ] || die "no C compiler (CC, cc, gcc or clang)"
"$compiler" -O1 -o "$work/probe" "$here/probe.c" -ldl || die "$compiler cannot compile probe.c"

gpu_name='' capability='' driver=''
probe() {
    local line
    line=$(timeout 60 "$work/probe" "${1%%:*}" "${1##*:}" 2>>"$work/probe.log") || return 1
    IFS=$'\t' read -r gpu_name capability driver <<<"$line"
    device=$1
}

: >"$work/probe.log"
found=no
for candidate in ${device:-cuda:0 hip:0}; do
    if probe "$candidate"; then
        found=yes
        break
    fi
done
if [ $found = no ]; then
    cat "$work/probe.log" >&2
    echo "check.sh: no GPU here (${device:-cuda:0, hip:0}); nothing was checked"
    exit 77
fi
backend=${device%%:*}
# The driver's release, where it is told; else the number of its interface.
release=''
if [ -z "$simulators" ] && [ "$backend" = cuda ] && command -v nvidia-smi >/dev/null 2>&1; then
    release=$(timeout 20 nvidia-smi --query-gpu=driver_version --format=csv,noheader \
        -i "${device##*:}" 2>/dev/null | head -n 1 || true)
elif [ -z "$simulators" ] && [ -r /sys/module/amdgpu/version ]; then
    release=$(cat /sys/module/amdgpu/version)
fi
if [[ $release =~ ^[0-9.]+$ ]]; then driver="$release ($driver)"; fi

# --- results -------------------------------------------------------------------------------------

declare -a names=() states=() times=() notes=()
cpu_name=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1 || true)

# A JSON string of printable ASCII.
quoted() {
    local text
    text=$(printf '%s' "$1" | LC_ALL=C tr -c ' -~' '?')
    text=${text//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

# The complete lines of a file of JSON objects, as an array; a line cut in half is left out.
json_lines() {
    local separator='' line
    printf '['
    if [ -f "$1" ]; then
        while IFS= read -r line; do
            case $line in
                '{'*'}') printf '%s\n    %s' "$separator" "$line"; separator=, ;;
            esac
        done <"$1"
    fi
    printf ']'
}

# A whole JSON document, or null where it was not finished.
json_document() {
    if [ -s "$1" ] && [ "$(tail -c 2 "$1")" = '}' ]; then
        cat "$1"
    else
        printf 'null'
    fi
}

count_of() {
    local wanted=$1 number=0 state
    for state in "${states[@]}"; do
        if [ "$state" = "$wanted" ]; then number=$((number + 1)); fi
    done
    echo "$number"
}

write_json() {
    local i separator=''
    printf '{\n  "dry_run": %s,\n' "$([ -n "$simulators" ] && echo true || echo false)"
    printf '  "machine": {"device": %s, "gpu": %s, "capability": %s, "driver": %s, "cpu": %s},\n' \
        "$(quoted "$device")" "$(quoted "$gpu_name")" "$(quoted "$capability")" \
        "$(quoted "$driver")" "$(quoted "$cpu_name")"
    printf '  "passed": %s,\n  "failed": %s,\n  "skipped": %s,\n  "stages": [' \
        "$(count_of passed)" "$(count_of failed)" "$(count_of skipped)"
    for i in "${!names[@]}"; do
        printf '%s\n    {"name": %s, "status": %s, "seconds": %s, "note": %s}' "$separator" \
            "$(quoted "${names[i]}")" "$(quoted "${states[i]}")" "${times[i]}" \
            "$(quoted "${notes[i]}")"
        separator=,
    done
    printf '\n  ],\n'
    printf '  "conformance": %s,\n' "$(json_document "$work/conformance.json")"
    printf '  "stress": %s,\n' "$(json_document "$work/stress.json")"
    printf '  "torch_interop": %s,\n' "$(json_lines "$work/torch_interop.jsonl")"
    printf '  "bench": %s,\n' "$(json_lines "$work/bench.jsonl")"
    printf '  "bench_torch": %s\n}\n' "$(json_lines "$work/bench_torch.jsonl")"
}

write_markdown() {
    local i log
    printf '# libmemopt on %s\n\n' "$gpu_name"
    if [ -n "$simulators" ]; then
        printf 'A dry run on a simulated driver: the figures mean nothing.\n\n'
    fi
    printf '%s, compute capability %s, driver %s; %s.\n\n' "$device" "$capability" "$driver" \
        "${cpu_name:-unknown processor}"
    printf '%s passed, %s failed, %s skipped\n\n' "$(count_of passed)" "$(count_of failed)" \
        "$(count_of skipped)"
    printf '| stage | result | seconds | |\n|---|---|--:|---|\n'
    for i in "${!names[@]}"; do
        printf '| %s | %s | %s | %s |\n' "${names[i]}" "${states[i]}" "${times[i]}" \
            "${notes[i]//|//}"
    done
    for log in bench bench_torch; do
        if grep -q '^|' "$work/$log.log" 2>/dev/null; then
            printf '\n## %s\n\n' "$log"
            grep '^|' "$work/$log.log"
        fi
    done
}

write_results() {
    local i
    write_json >"$work/results.json.new"
    write_markdown >"$work/results.md.new"
    for i in "${!names[@]}"; do
        printf '===== %s: %s\n' "${names[i]}" "${states[i]}"
        tail -c 500000 "$work/${names[i]}.log" 2>/dev/null || true
    done >"$work/check.log.new"
    for i in results.json results.md check.log; do
        cp "$work/$i.new" "$out/$i.new"
        mv "$out/$i.new" "$out/$i"
    done
}

# --- stages --------------------------------------------------------------------------------------

stage_pid=''
interrupted() {
    [ -z "$stage_pid" ] || kill -TERM "$stage_pid" 2>/dev/null || true
    if [ ${#names[@]} -gt 0 ] && [ "${states[-1]}" = running ]; then
        states[-1]=failed
        notes[-1]='interrupted'
    fi
    write_results
    exit 1
}
trap interrupted INT TERM HUP

# The last line of a log that says something, not too long.
last_line() {
    grep -v '^[[:space:]]*$' "$1" 2>/dev/null | tail -n 1 | cut -c 1-160 || true
}

# Waits until a process has ended; one that not even SIGKILL ends is left behind.
await() {
    local pid=$1 until=$2 written=$SECONDS
    while kill -0 "$pid" 2>/dev/null; do
        if [ "$SECONDS" -ge "$until" ]; then return 1; fi
        if [ $((SECONDS - written)) -ge 5 ]; then
            write_results
            written=$SECONDS
        fi
        sleep 0.1
    done
}

# finish STATE START NOTE: the end of the stage that runs.
finish() {
    states[-1]=$1
    times[-1]=$((SECONDS - $2))
    notes[-1]=$3
    printf '%-22s %-8s %4d s   %s\n' "${names[-1]}" "$1" "${times[-1]}" "$3"
    write_results
}

# stage NAME LIMIT COMMAND...: runs it for at most LIMIT seconds of what is left of the budget.
# Status 0 passed, 77 skipped; everything else failed. The stages after it run all the same.
stage() {
    local name=$1 limit=$2 start=$SECONDS left=$((budget - SECONDS - 5)) status
    shift 2
    names+=("$name") states+=(running) times+=(0) notes+=('')
    : >"$work/$name.log"
    if [ "$left" -lt 5 ]; then
        finish skipped "$start" "no time left"
        return
    fi
    if [ "$limit" -gt "$left" ]; then limit=$left; fi
    timeout --kill-after=5 "$limit" "$@" >"$work/$name.log" 2>&1 </dev/null &
    stage_pid=$!
    if ! await "$stage_pid" $((SECONDS + limit + 10)); then
        stage_pid=''
        finish failed "$start" "did not end when killed after $limit s"
        return
    fi
    status=0
    wait "$stage_pid" || status=$?
    stage_pid=''
    case $status in
        0) finish passed "$start" "$(last_line "$work/$name.log")" ;;
        77) finish skipped "$start" "$(last_line "$work/$name.log")" ;;
        124 | 137) finish failed "$start" "stopped after $limit s: $(last_line "$work/$name.log")" ;;
        *) finish failed "$start" "status $status: $(last_line "$work/$name.log")" ;;
    esac
}

run_stages() {
    local conformance=$build/tests/conformance/conformance bench=$build/tests/gpu/gpu_bench
    local random=$((RANDOM + 1)) seconds=20 tool torch_device=$device cases='*'
    # Every kernel, small; neither memory to the last page nor launches by the thousand.
    local sanitized='copies,launch,record_stream,checkpoint,offload,cast_pairs,cast_sizes'
    sanitized+=',cast_in_place,scaler_sizes,scaler_non_finite,scaler_norms,scaler_scale,codes_sizes'
    sanitized+=',codes_every_code,hash,step_plain,graph_step,optimizer_adamw_8bit'
    if [ -n "$simulators" ]; then
        seconds=0.2
        torch_device=cpu
        cases='copies,oom_limit,cast_sizes,hash,graph_waiting'
        sanitized=copies,hash
    fi
    export MEMOPT_LIBRARY=$build/libmemopt.so
    export PYTHONPATH=$root/bindings/python${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
    rm -f "$work"/*.json "$work"/*.jsonl

    stage conformance 150 "$here/conformance.sh" "$conformance" "$device" \
        "${small[0]:---large}" --require --only "$cases" --json "$work/conformance.json"
    stage stress 60 "$here/conformance.sh" "$conformance" "$device" \
        "${small[@]}" --require --only 'stress*' --seed "$random" --seconds "$seconds" \
        --json "$work/stress.json"
    stage torch_interop 60 "${torch[@]}" "$here/torch_interop.py" --device "$torch_device" \
        "${small[@]}" --json "$work/torch_interop.jsonl"
    stage bench 100 "$bench" --device "$device" "${small[@]}" --rounds "$rounds" --seconds 70 \
        --json "$work/bench.jsonl"
    stage bench_torch 80 "${torch[@]}" "$here/bench_torch.py" --device "$torch_device" \
        "${small[@]}" --rounds "$rounds" --seconds 60 --json "$work/bench_torch.jsonl"
    for tool in memcheck racecheck initcheck synccheck; do
        stage "$tool" 50 "$here/sanitize.sh" "$tool" "$conformance" "$device" \
            "$sanitized"
    done
}

echo "check.sh: $device is $gpu_name, driver $driver; at most $budget s"
if [ -z "$build" ]; then
    build=$work/build
    targets=$capability
    if [ $all_targets = yes ]; then targets=all; fi
    stage build 180 "$here/build.sh" "$build" "$backend" "$targets"
fi
run_stages
write_results
printf '%s passed, %s failed, %s skipped; see %s\n' "$(count_of passed)" "$(count_of failed)" \
    "$(count_of skipped)" "$out/results.md"
[ "$(count_of failed)" = 0 ]
