# For scripts that run tests in steps (./check): source it in the root of the project. A step is a line: name,
# minutes on two fast cores (a slow machine takes twice as long), command. One with tests leaves
# $results/NAME.xml; a name in `stages` is stamped in tests/due when it has passed.
declare -A stages=()
resume=no
[ ! -x .venv/bin/cmake ] || PATH=$PWD/.venv/bin:$PATH

minutes_of() {
    local step sum=0
    for step; do
        read -r _ minutes _ <<<"$step"
        sum=$((sum + minutes))
    done
    echo $sum
}

# What is tested: the commit and what has changed since, but the stamps of what passed. Without git nothing
# is known to be the same.
state_of_sources() {
    git rev-parse HEAD 2>/dev/null || date +%s.%N
    { git diff HEAD -- . ':!tests/due/stamps.txt' && git ls-files -o --exclude-standard; } 2>/dev/null |
        sha256sum
}

# step NAME COMMAND: runs it with its output in a log. A failing step whose tests left no results of
# their own (the build broke, say) counts as one failure.
step() {
    local name=$1 log=$results/$1.log
    if [ $resume = yes ] && [ "$(cat "$results/$name.ok" 2>/dev/null)" = "$now $2" ]; then
        printf '%-10s passed before\n' "$name"
        return
    fi
    rm -f "$results/$name".*
    if tools/progress "$name" "$log" bash -c "$2"; then
        echo "$now $2" >"$results/$name.ok"
        [ -z "${stages[$name]-}" ] || python3 tests/due/due.py --passed "$name" "$results/$name.xml"
        return
    fi
    python3 tests/tools/results.py --failed "$results/$name.xml" || {
        touch "$results/$name.broken"
        tail -n 40 "$log"
    }
}

# run_steps NAME STEP...: runs them and closes with "N passed, N failed, N skipped".
run_steps() {
    local title=$1 line name minutes command
    shift
    mkdir -p "$results"
    now=$(state_of_sources)
    [ $resume = yes ] || rm -f "$results"/*
    minutes=$(minutes_of "$@")
    echo "$title: about $minutes minutes on two fast cores, $((2 * minutes)) on slow ones"
    for line; do
        read -r name _ command <<<"$line"
        step "$name" "$command"
    done
    python3 tests/tools/results.py --total "$results"
}
