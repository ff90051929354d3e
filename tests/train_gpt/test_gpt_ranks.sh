#!/usr/bin/env bash
# Runs of several ranks: the bits of one rank, states cut into shards, and a run that goes on with
# another number of ranks. Usage: test_gpt_ranks.sh TRAIN_GPT RANKS...
set -u
program=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for i in $(seq 400); do echo "line $i of a text that is long enough to learn from"; done >"$work/text"
small=(--text "$work/text" --layers 2 --width 64 --heads 2 --context 16 --batch 1 --threads 1
       --capacity 128MiB --accumulation 4 --dropout 0.1 --json)
planned=(--dtype bf16 --optimizer adamw8bit --layers 4 --context 64)
savers=(--dtype bf16 --optimizer adamw8bit --checkpoint on --offload on)

if ! command -v mpirun >/dev/null; then
    echo "no mpirun: install openmpi-bin and libopenmpi-dev (./setup --mpi)"
    exit 77
fi
if "$program" "${small[@]}" --ranks 1 --steps 0 2>&1 | grep -q "built without MPI"; then
    echo "this train_gpt was built without MPI"
    exit 77
fi

fail() {
    echo "FAIL: $*"
    failed=1
}

# run RANKS NAME ARGUMENTS...: what it prints goes to NAME.
run() {
    local ranks=$1 name=$2
    shift 2
    OMPI_MCA_btl_vader_single_copy_mechanism=none timeout 300 \
        mpirun -n "$ranks" --oversubscribe --allow-run-as-root \
        "$program" --ranks "$ranks" "${small[@]}" "$@" >"$work/$name" 2>"$work/$name.errors" && return
    fail "$ranks ranks, $*: $(cat "$work/$name" "$work/$name.errors")"
}

losses() {
    grep -oE '"(loss_hex|norm|held_out_loss)":[^,]*' "$work/$1"
}

same_losses() {
    [ -n "$(losses "$1")" ] && [ "$(losses "$1")" = "$(losses "$2")" ] ||
        fail "losses of $1 and $2 differ: $(diff <(losses "$1") <(losses "$2"))"
}

# Weights and masters of a resume file: all behind the counters but the checksum.
weights() {
    local config
    config=$(od -An -tu4 -j16 -N4 "$work/$1" | tr -d ' ')
    tail -c +$((16 + 4 + config + 32 + 1)) "$work/$1" | head -c -4
}

same_weights() {
    cmp -s <(weights "$1") <(weights "$2") || fail "weights of $1 and $2 differ"
}

# figure NAME RUN: a number that a run printed.
figure() {
    grep -oE "\"$1\":[0-9]+" "$work/$2" | grep -oE '[0-9]+'
}

# One rank is a run without ranks, if no sums are made.

"$program" "${small[@]}" --accumulation 1 --dropout 0 --steps 3 >"$work/plain"
run 1 one --accumulation 1 --dropout 0 --steps 3
same_losses one plain

run 1 whole "${savers[@]}" --steps 4 --save "$work/whole.states"
run 1 kept "${planned[@]}" --steps 4
for ranks; do
    run "$ranks" "of$ranks" "${savers[@]}" --steps 4 --save "$work/of$ranks.states"
    same_losses whole "of$ranks"
    same_weights whole.states "of$ranks.states"
    share=$(($(figure optimizer "of$ranks") * ranks * 100 / $(figure optimizer whole)))
    [ "$share" -le 110 ] || fail "$ranks ranks have $share % of one rank's states"

    # Weights that stream, and a budget that keeps three quarters of the values: the same bits.
    run "$ranks" "streamed$ranks" "${savers[@]}" --stream-weights on --steps 4 --save "$work/streamed"
    same_losses whole "streamed$ranks"
    same_weights whole.states streamed
    run "$ranks" roomy "${planned[@]}" --budget 128MiB --steps 0
    fixed=$(figure fixed roomy) budget=$(($(figure plain roomy) * 3 / 4 + fixed / 4))
    run "$ranks" "planned$ranks" "${planned[@]}" --budget "$budget" --steps 4
    [ "$(figure measured "planned$ranks")" -le "$budget" ] || fail "$ranks ranks: a budget is not held"
    same_losses kept "planned$ranks"

    # Two steps with one rank, one more with these, then one with one rank again.
    rm -f "$work"/moved.states*
    run 1 begin "${savers[@]}" --steps 2 --save "$work/moved.states"
    run "$ranks" goes_on "${savers[@]}" --steps 3 --resume "$work/moved.states" \
        --save "$work/moved.states"
    [ "$(find "$work" -name 'moved.states-*' | wc -l)" = "$ranks" ] ||
        fail "files of $ranks ranks: $(find "$work" -name 'moved.states-*')"
    run 1 ends "${savers[@]}" --steps 4 --resume "$work/moved.states" --save "$work/moved.states"
    same_weights whole.states moved.states
done

# A file of states that is missing: every rank ends, none waits.
rm "$work"/moved.states-4.0of1
if timeout 60 mpirun -n 2 --oversubscribe --allow-run-as-root "$program" --ranks 2 "${small[@]}" \
    "${savers[@]}" --steps 5 --resume "$work/moved.states" >"$work/out" 2>&1; then
    fail "a run went on without its states"
elif ! grep -q "cannot open .*moved.states-4.0of1" "$work/out"; then
    fail "no states: $(cat "$work/out")"
fi
exit $failed
