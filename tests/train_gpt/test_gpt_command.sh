#!/usr/bin/env bash
# The command line of train_gpt: help, usage errors, out of memory, output forms.
# Usage: test_gpt_command.sh TRAIN_GPT
set -u
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for i in $(seq 400); do echo "line $i of a text that is long enough to learn from"; done >"$work/text"
small=(--text "$work/text" --layers 2 --width 32 --heads 2 --context 32 --batch 2 --threads 1
       --capacity 64MiB)

# run STATUS WORD ARGUMENTS...: the exit status must be STATUS and WORD must be in the output.
run() {
    local status=$1 word=$2
    shift 2
    "$program" "$@" >"$work/out" 2>&1
    local got=$?
    if [ "$got" -ne "$status" ]; then
        echo "FAIL: train_gpt $*: exit status $got, not $status"
        cat "$work/out"
        failed=1
    elif ! grep -qF -e "$word" "$work/out"; then
        echo "FAIL: train_gpt $*: '$word' is not in the output:"
        cat "$work/out"
        failed=1
    fi
}

run 0 "--checkpoint on|off" --help
run 0 "libmemopt 0." --version
run 2 "unknown option --layer" --layer 3
run 2 "'fp8'" --dtype fp8
run 2 "whole number from 1 to 1024" --layers 0
run 2 "not '-1'" --steps -1
run 2 "not '12x'" --batch 12x
run 2 "--lr needs" --lr nan
run 2 "--save needs FILE" --save
run 2 "not a multiple of --heads" --width 30 --heads 4
run 2 "--save-every needs --save" --save-every 3
run 2 "not a multiple of --ranks 2" --ranks 2 --accumulation 3
run 2 "does not go with" --ranks 1 --demo
run 2 "capacity" --capacity 12parsec
run 2 "is not an option" extra
run 2 "takes no value" --json=yes
run 2 "leave out --checkpoint" --budget 64MiB --checkpoint on
run 1 "No such file" --text "$work/missing"
run 1 "smaller --context" "${small[@]}" --context 60000
run 1 "expandable_segments" "${small[@]}" --steps 1 --allocator expandable_segment:True
run 1 "No such file" "${small[@]}" --steps 1 --resume "$work/missing"
run 3 "asked" "${small[@]}" --steps 1 --batch 512 --capacity 8MiB
run 3 "--checkpoint on" "${small[@]}" --steps 1 --batch 512 --capacity 8MiB
run 0 "held-out text" "${small[@]}" --steps 3
run 0 '"loss_hex":"0x' "${small[@]}" --steps 2 --json
run 0 "step 2/2" "${small[@]}" --steps 2 --stream-order=adversarial --offload on --check hash \
    --checkpoint on
run 0 "5 copies" "${small[@]}" --steps 4 --layers 3 --stream-weights on
run 0 '"streamed_weights":{"layers":3' "${small[@]}" --steps 2 --layers 3 --stream-weights on --json
run 1 "below the floor of" "${small[@]}" --steps 2 --budget 100KiB
run 0 "if all were kept" "${small[@]}" --steps 2 --budget 1100KiB
run 0 '"budget":{"bytes":1126400' "${small[@]}" --steps 2 --budget 1100KiB --json

"$program" "${small[@]}" --steps 3 >"$work/out"
if grep -q $'\x1b' "$work/out"; then
    echo "FAIL: escape sequences in a pipe"
    failed=1
fi
if command -v script >/dev/null; then
    # On a terminal: a bar that is written over, coloured unless NO_COLOR is set.
    quoted=$(printf ' %q' "$program" "${small[@]}" --steps 3)
    TERM=xterm script -qec "$quoted" /dev/null >"$work/out" </dev/null
    grep -q $'\x1b\[36m' "$work/out" || { echo "FAIL: no colour on a terminal"; failed=1; }
    NO_COLOR=1 TERM=xterm script -qec "$quoted" /dev/null >"$work/out" </dev/null
    grep -q $'\x1b\[36m' "$work/out" && { echo "FAIL: colour in spite of NO_COLOR"; failed=1; }
    grep -q $'\r' "$work/out" || { echo "FAIL: no bar on a terminal"; failed=1; }
fi
[ "$failed" -eq 0 ] && echo "all as expected"
exit "$failed"
