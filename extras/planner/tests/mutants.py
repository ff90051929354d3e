"""Mutants of the planner; tests/mutants/run.py takes them with its own."""

from run import Mutant

MUTANTS = (
    Mutant(
        "plan_shards_by_their_size",
        "extras/planner/lib/model/optimizer.c",
        "int small = mo_max_u64(n, w->whole) < run->min_8bit_size;",
        "int small = n < run->min_8bit_size;",
        "planner-sanitized",
        "^plan_parallel$",
    ),
    Mutant(
        "plan_dominated",
        "extras/planner/lib/solve/search.c",
        """        for (int i = 0; i < MO_PLAN_CHANGES; i++)
            if (is_in(p->set, i))
                MO_TRY(try_set(s, with & ~(1u << i), p, best));
""",
        "",
        "planner-plain",
        "^plan_solve_grid$",
    ),
)
