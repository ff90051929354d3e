/*
 * The solver against all sets of choices of small random tapes, and on tapes of the size of real
 * models. What it answers is replayed.
 */
#include "support.h"

#include "support/random.h"
#include "support/sweep.h"

enum { MOST_EVENTS = 1 << 14, MOST_CHOICES = 1024, SMALL = 10, BUDGETS = 6 };

static uint64_t state;

/* A tape that is written event by event. */
typedef struct tape {
    memopt_fit_event events[MOST_EVENTS];
    uint64_t bytes[MOST_EVENTS];
    memopt_fit_choice choices[MOST_CHOICES];
    uint32_t inputs[MOST_CHOICES], packed[MOST_EVENTS];
    uint32_t events_n, storages, choices_n, packs, modules;
} tape;

static tape t;

static void event(uint32_t kind, uint32_t subject, uint32_t storage)
{
    t.events[t.events_n++] = (memopt_fit_event){kind, subject, storage};
}

static uint32_t bear(uint64_t most)
{
    t.bytes[t.storages] = 1 + random_below(&state, most);
    event(MEMOPT_FIT_BIRTH, t.storages, 0);
    return t.storages++;
}

static uint32_t save(uint32_t storage)
{
    t.packed[t.packs] = storage;
    event(MEMOPT_FIT_PACK, t.packs, storage);
    return t.packs++;
}

static void choose(uint32_t kind, uint32_t module, uint32_t storage, uint32_t pack, uint32_t input)
{
    uint32_t n = t.choices_n++;
    t.inputs[n] = input;
    t.choices[n] = (memopt_fit_choice){.kind = kind,
                                       .module = module,
                                       .storage = storage,
                                       .first_pack = pack,
                                       .first_input = n,
                                       .input_count = kind == MEMOPT_FIT_OFFLOAD ? 0 : 1,
                                       .extra_bytes = random_below(&state, 4),
                                       .seconds = (double)(1 + random_below(&state, 20))};
}

/* Values within a module: one from the other, both saved. Every second has a module of its own. */
static void values(uint32_t input)
{
    uint32_t module = t.modules, inner = random_below(&state, 2) != 0;
    if (inner) {
        t.modules++;
        event(MEMOPT_FIT_ENTER, module, 0);
        choose(MEMOPT_FIT_RECOMPUTE, module, 0, 0, input);
    }
    uint32_t a = bear(60);
    (void)save(a);
    uint32_t b = bear(60), pack = save(b);
    choose(MEMOPT_FIT_REMAKE, MEMOPT_FIT_NONE, b, pack, a);
    choose(MEMOPT_FIT_OFFLOAD, 0, random_below(&state, 2) ? a : b, 0, 0);
    uint32_t temporary = bear(20);
    event(MEMOPT_FIT_DEATH, temporary, 0);
    event(MEMOPT_FIT_DEATH, a, 0);
    event(MEMOPT_FIT_DEATH, b, 0);
    if (inner)
        event(MEMOPT_FIT_LEAVE, module, 0);
}

static void make_tape(uint32_t layers, uint32_t each)
{
    memset(&t, 0, sizeof t);
    uint32_t x = bear(20);
    for (uint32_t i = 0; i < layers; i++) {
        uint32_t module = t.modules++;
        event(MEMOPT_FIT_ENTER, module, 0);
        (void)save(x);
        choose(MEMOPT_FIT_RECOMPUTE, module, 0, 0, x);
        for (uint32_t j = 0; j < each; j++)
            values(x);
        uint32_t y = bear(20);
        event(MEMOPT_FIT_LEAVE, module, 0);
        event(MEMOPT_FIT_DEATH, x, 0);
        x = y;
    }
    event(MEMOPT_FIT_BACKWARD, 0, 0);
    uint32_t gradient = bear(20);
    for (uint32_t p = t.packs; p-- > 0;) {
        event(MEMOPT_FIT_UNPACK, p, 0);
        uint32_t next = bear(30);
        event(MEMOPT_FIT_RELEASE, p, 0);
        event(MEMOPT_FIT_DEATH, gradient, 0);
        gradient = next;
    }
}

static memopt_fit *open_fit(void)
{
    memopt_fit *fit = NULL;
    memopt_fit_tape of = MEMOPT_FIT_TAPE_INIT;
    of.events = t.events;
    of.event_count = t.events_n;
    of.storage_bytes = t.bytes;
    of.storage_count = t.storages;
    of.choices = t.choices;
    of.choice_count = t.choices_n;
    of.inputs = t.inputs;
    of.input_count = t.choices_n;
    of.fixed_bytes = 50;
    OK(memopt_fit_create(&of, &fit));
    return fit;
}

/* What is found is what a replay gives. */
static memopt_fit_result solved(const memopt_fit *fit, uint64_t budget, uint64_t host)
{
    static uint32_t chosen[MOST_CHOICES];
    uint64_t count = 0;
    memopt_fit_result r = MEMOPT_FIT_RESULT_INIT;
    memopt_fit_options o = MEMOPT_FIT_OPTIONS_INIT;
    o.budget = budget;
    o.host_limit = host;
    OK(memopt_fit_solve(fit, &o, chosen, &count, &r));
    memopt_fit_result again = replayed(fit, chosen, count);
    assert_memory_equal(&again, &r, sizeof r);
    assert_true(budget == 0 || r.peak_bytes <= budget);
    assert_true(host == 0 || r.host_bytes <= host);
    return r;
}

/* All sets that are allowed: their results. */
static uint32_t all_sets(const memopt_fit *fit, memopt_fit_result *out)
{
    uint32_t n = 0;
    for (uint32_t bits = 0; bits < 1u << t.choices_n; bits++) {
        uint32_t chosen[SMALL], count = 0;
        for (uint32_t i = 0; i < t.choices_n; i++)
            if (bits >> i & 1)
                chosen[count++] = i;
        out[n] = (memopt_fit_result)MEMOPT_FIT_RESULT_INIT;
        n += memopt_fit_replay(fit, chosen, count, &out[n]) == MEMOPT_OK;
    }
    return n;
}

/* Seconds of the best set, and the solver's, summed over budgets and tapes. */
typedef struct score {
    double best, found;
    int budgets, floors, least;
} score;

static void compare(score *sc)
{
    static memopt_fit_result all[1 << SMALL];
    memopt_fit *fit = open_fit();
    uint32_t n = all_sets(fit, all);
    uint64_t least = UINT64_MAX, plain = all[0].peak_bytes;
    for (uint32_t i = 0; i < n; i++)
        least = all[i].peak_bytes < least ? all[i].peak_bytes : least;
    uint64_t floor = solved(fit, 0, 0).peak_bytes;
    assert_true(floor >= least);
    sc->floors++;
    sc->least += floor == least;
    for (uint64_t k = 0; k <= BUDGETS; k++) {
        uint64_t budget = floor + (plain - floor) * k / BUDGETS;
        double best = 1e9;
        for (uint32_t i = 0; i < n; i++)
            if (all[i].peak_bytes <= budget && all[i].seconds < best)
                best = all[i].seconds;
        double found = solved(fit, budget, 0).seconds;
        assert_true(found >= best);
        sc->best += best;
        sc->found += found;
        sc->budgets++;
    }
    OK(memopt_fit_destroy(fit));
}

TEST(test_against_all_sets)
{
    score sc = {0};
    FOR_SEEDS (seed, 160) {
        state = seed;
        do
            make_tape(1 + (uint32_t)random_below(&state, 3), 1 + (uint32_t)random_below(&state, 2));
        while (t.choices_n > SMALL);
        compare(&sc);
    }
    printf("%d of %d floors are the least, %.0f seconds for %.0f\n", sc.least, sc.floors, sc.found,
           sc.best);
    assert_true(sc.least >= sc.floors * 0.95);
    assert_true(sc.found <= sc.best * 1.01);
}

/* The floor is of bytes alone: other times give the same choices. On these tapes they once did not. */
TEST(test_floor_without_times)
{
    static const uint64_t seeds[] = {2, 41, 51};
    uint32_t first[MOST_CHOICES], other[MOST_CHOICES];
    uint64_t first_n = 0, other_n = 0;
    memopt_fit_result a = MEMOPT_FIT_RESULT_INIT, b = a;
    for (uint32_t trial = 0; trial < 9; trial++) {
        state = seeds[trial / 3];
        make_tape(3, 1);
        memopt_fit *fit = open_fit();
        OK(memopt_fit_solve(fit, NULL, first, &first_n, &a));
        OK(memopt_fit_destroy(fit));
        state = trial;
        for (uint32_t i = 0; i < t.choices_n; i++)
            t.choices[i].seconds = (double)random_below(&state, 1000);
        fit = open_fit();
        OK(memopt_fit_solve(fit, NULL, other, &other_n, &b));
        OK(memopt_fit_destroy(fit));
        assert_int_equal(a.peak_bytes, b.peak_bytes);
        assert_int_equal(first_n, other_n);
        assert_memory_equal(first, other, first_n * sizeof *first);
    }
}

/* 240 modules and 180 values: from the floor up, less time for more bytes. */
TEST(test_large)
{
    state = 5;
    make_tape(60, 3);
    memopt_fit *fit = open_fit();
    uint64_t plain = replayed(fit, NULL, 0).peak_bytes, floor = solved(fit, 0, 0).peak_bytes;
    double before = 1e9;
    for (uint64_t k = 0; k <= 2; k++) {
        uint64_t budget = floor + (plain - floor) * (2 * k + 1) / 6;
        memopt_fit_result r = solved(fit, budget, 0);
        assert_true(r.peak_bytes * 100 >= budget * 99);
        assert_true(r.seconds < before);
        before = r.seconds;
        uint64_t host = replayed(fit, NULL, 0).host_bytes + plain / 20;
        assert_true(solved(fit, budget, host).seconds >= r.seconds);
    }
    assert_true(solved(fit, plain, 0).seconds == 0);
    OK(memopt_fit_destroy(fit));
}

/* Three values, of which one has room on the host: the next goes to the disk, which is slower. */
TEST(test_host_and_disk)
{
    memset(&t, 0, sizeof t);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t storage = bear(1);
        t.bytes[storage] = 100;
        (void)save(storage);
        event(MEMOPT_FIT_DEATH, storage, 0);
        for (uint32_t kind = MEMOPT_FIT_OFFLOAD; kind <= MEMOPT_FIT_DISK; kind++)
            t.choices[t.choices_n++] =
                (memopt_fit_choice){.kind = kind,
                                    .storage = storage,
                                    .first_pack = i,
                                    .seconds = kind == MEMOPT_FIT_DISK ? 5 : 1};
    }
    event(MEMOPT_FIT_BACKWARD, 0, 0);
    for (uint32_t p = 3; p-- > 0;) {
        event(MEMOPT_FIT_UNPACK, p, 0);
        event(MEMOPT_FIT_RELEASE, p, 0);
    }
    memopt_fit *fit = open_fit();
    uint32_t chosen[6];
    uint64_t count = 0;
    memopt_fit_result r = MEMOPT_FIT_RESULT_INIT;
    memopt_fit_options o = {sizeof o, 150, 100, 100};
    OK(memopt_fit_solve(fit, &o, chosen, &count, &r));
    assert_int_equal(count, 2);
    assert_true(r.seconds == 6 && r.host_bytes == 100 && r.disk_bytes == 100);
    o.budget = 0;
    OK(memopt_fit_solve(fit, &o, chosen, &count, &r));
    assert_int_equal(r.peak_bytes, 150);
    o.budget = 150;
    o.disk_limit = 99;
    FAILS_SAYING(MEMOPT_LIMIT_REACHED, "the least that was found is 250",
                 memopt_fit_solve(fit, &o, chosen, &count, &r));
    o.host_limit = 99;
    o.disk_limit = 0;
    OK(memopt_fit_solve(fit, &o, chosen, &count, &r));
    assert_true(r.seconds == 10 && r.disk_bytes == 200);
    OK(memopt_fit_destroy(fit));
}

TEST(test_below_the_floor)
{
    state = 9;
    make_tape(3, 1);
    memopt_fit *fit = open_fit();
    uint64_t floor = solved(fit, 0, 0).peak_bytes, count = 7;
    uint32_t chosen[SMALL * 2] = {99};
    char text[64];
    memopt_fit_result r = MEMOPT_FIT_RESULT_INIT;
    memopt_fit_options o = MEMOPT_FIT_OPTIONS_INIT;
    o.budget = floor - 1;
    (void)snprintf(text, sizeof text, "is %d bytes; the least that was found is %d, of which 50",
                   (int)o.budget, (int)floor);
    FAILS_SAYING(MEMOPT_LIMIT_REACHED, text, memopt_fit_solve(fit, &o, chosen, &count, &r));
    SAYS("storage ");
    assert_int_equal(count, 7);
    assert_int_equal(chosen[0], 99);
    assert_int_equal(r.peak_bytes, 0);
    REFUSED(memopt_fit_solve(fit, NULL, NULL, &count, &r));
    REFUSED(memopt_fit_solve(NULL, NULL, chosen, &count, &r));
    REFUSED(memopt_fit_solve(fit, NULL, chosen, NULL, &r));
    REFUSED(memopt_fit_solve(fit, NULL, chosen, &count, NULL));
    OK(memopt_fit_destroy(fit));
}
