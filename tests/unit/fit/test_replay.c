/* What choices take: peaks counted by hand, event by event. */
#include "support.h"

#include "base/memory.h"

#include <math.h>

/* A module with an input x, an inner value v, a temporary value w and an output y; gradients g, h; z
 * after it. */
enum { X, V, W, Y, G, H, Z, STORAGES };
static const uint64_t bytes[STORAGES] = {10, 40, 5, 10, 10, 5, 1000};
static const uint32_t inputs[] = {X, STORAGES};

static const memopt_fit_event layer[] = {
    BIRTH(X),   ENTER(0),  PACK(0, X), BIRTH(V),   BIRTH(W),   DEATH(W),   PACK(1, V), DEATH(V),
    BIRTH(Y),   LEAVE(0),  DEATH(X),   PACK(2, Y), DEATH(Y),   BACKWARD,   UNPACK(2),  BIRTH(G),
    RELEASE(2), UNPACK(1), UNPACK(0),  BIRTH(H),   RELEASE(1), RELEASE(0), DEATH(G),
};
enum { AT_G = 15, AT_UNPACK = 17, AT_H = 19 };

static const memopt_fit_choice run_again = {MEMOPT_FIT_RECOMPUTE, 0, 0, 0, 0, 1, 0, 3};
static const memopt_fit_choice remake = {MEMOPT_FIT_REMAKE, MEMOPT_FIT_NONE, V, 1, 0, 1, 3, 2};
static const memopt_fit_choice offload = {MEMOPT_FIT_OFFLOAD, 0, V, 1, 0, 0, 0, 4};

static memopt_status make(const memopt_fit_event *events, uint64_t count,
                          const memopt_fit_choice *choices, uint64_t choice_count, memopt_fit **out)
{
    memopt_fit_tape t = MEMOPT_FIT_TAPE_INIT;
    t.events = events;
    t.event_count = count;
    t.storage_bytes = bytes;
    t.storage_count = STORAGES;
    t.choices = choices;
    t.choice_count = choice_count;
    t.inputs = inputs;
    t.input_count = COUNT(inputs);
    t.fixed_bytes = 100;
    return memopt_fit_create(&t, out);
}

/* With one choice, or none where it is NULL. */
static memopt_fit_result with(const memopt_fit_event *events, uint64_t count,
                              const memopt_fit_choice *choice)
{
    memopt_fit *fit = NULL;
    uint32_t first = 0;
    OK(make(events, count, choice, choice != NULL, &fit));
    memopt_fit_result r = replayed(fit, &first, choice != NULL);
    OK(memopt_fit_destroy(fit));
    return r;
}

static void expect(const memopt_fit_choice *choice, uint64_t peak, uint64_t event, uint64_t host,
                   double seconds)
{
    memopt_fit_result r = with(layer, COUNT(layer), choice);
    assert_int_equal(r.peak_bytes, peak);
    assert_int_equal(r.peak_event, event);
    assert_int_equal(r.host_bytes, host);
    assert_true(r.seconds == seconds);
}

TEST(test_plain)
{
    expect(NULL, 170, AT_G, 0, 0); /* 100, x, v, y, g */
    memopt_fit_result r = with(layer, COUNT(layer), NULL);
    assert_int_equal(r.peak_module, MEMOPT_FIT_NONE);
    assert_int_equal(r.peak_storage, V);
}

TEST(test_recompute)
{
    expect(&run_again, 165, AT_UNPACK, 0, 3); /* 100, x, g, v, w: it stops before y */
    memopt_fit_result r = with(layer, COUNT(layer), &run_again);
    assert_int_equal(r.peak_module, 0);
    assert_int_equal(r.peak_storage, V);
    memopt_fit_choice c = run_again;
    c.extra_bytes = 7;
    expect(&c, 179, AT_UNPACK, 0, 3); /* the copies twice */
    c.input_count = 0;                /* x lives no longer than y's pack; the run makes it anew */
    expect(&c, 179, AT_UNPACK, 0, 3);
}

TEST(test_recompute_for_what_is_not_released)
{
    memopt_fit_event events[COUNT(layer)];
    memcpy(events, layer, sizeof layer);
    events[AT_UNPACK] = (memopt_fit_event)RELEASE(1);
    memopt_fit_result r = with(events, COUNT(layer) - 3, &run_again);
    assert_int_equal(r.peak_bytes, 155); /* in forward: 100, x, v, w; then it stops at x's pack */
    assert_true(r.seconds == 3);
}

TEST(test_remake)
{
    expect(&remake, 165, AT_H, 0, 2); /* 100, x, g, v, h */
    memopt_fit_choice c = remake;
    c.extra_bytes = 9;
    expect(&c, 169, AT_UNPACK, 0, 2);
    c.first_pack = 2;
    expect(&c, 170, AT_G, 0, 0); /* no such pack */
}

TEST(test_offload)
{
    expect(&offload, 165, AT_H, 40, 4);
    memopt_fit_choice c = offload;
    c.kind = MEMOPT_FIT_DISK;
    expect(&c, 165, AT_H, 0, 4);
    assert_int_equal(with(layer, COUNT(layer), &c).disk_bytes, 40);
}

/* The host has both values, one after the other. */
TEST(test_offload_ends)
{
    static const memopt_fit_event events[] = {
        BIRTH(V),   PACK(1, V), DEATH(V), UNPACK(1), RELEASE(1), BIRTH(Y),
        PACK(2, Y), DEATH(Y),   BACKWARD, UNPACK(2), RELEASE(2),
    };
    const memopt_fit_choice both[] = {offload, {MEMOPT_FIT_OFFLOAD, 0, Y, 2, 0, 0, 0, 4}};
    memopt_fit *fit = NULL;
    OK(make(events, COUNT(events), both, 2, &fit));
    assert_int_equal(replayed(fit, (const uint32_t[]){0, 1}, 2).host_bytes, 40);
    OK(memopt_fit_destroy(fit));
}

/* A value of two packs is made once where both are unpacked, and twice where the first is gone. */
TEST(test_shared_value)
{
    static const memopt_fit_event together[] = {
        BIRTH(X), PACK(0, X), BIRTH(V), PACK(1, V), PACK(2, V), DEATH(V),   DEATH(X),
        BACKWARD, UNPACK(1),  BIRTH(G), UNPACK(2),  RELEASE(1), RELEASE(2), RELEASE(0),
    };
    memopt_fit_event apart[COUNT(together)];
    memopt_fit_choice c = remake;
    memcpy(apart, together, sizeof together);
    apart[10] = together[11];
    apart[11] = together[10];
    c.extra_bytes = 9;
    assert_true(with(together, COUNT(together), &c).seconds == 2);
    assert_true(with(apart, COUNT(apart), &c).seconds == 4);
    assert_int_equal(with(together, COUNT(together), &c).peak_bytes, 160); /* 100, x, v, g */
    assert_int_equal(with(apart, COUNT(apart), &c).peak_bytes, 169);       /* and the 9 */
    assert_int_equal(with(together, COUNT(together), &offload).host_bytes, 40);
}

/* After the step only h is left, whatever was chosen. */
TEST(test_nothing_is_left)
{
    memopt_fit_choice c = run_again;
    const memopt_fit_choice *all[] = {NULL, &c, &remake, &offload};
    memopt_fit_event events[COUNT(layer) + 1];
    memcpy(events, layer, sizeof layer);
    events[COUNT(layer)] = (memopt_fit_event)BIRTH(Z);
    c.extra_bytes = 7;
    for (uint64_t i = 0; i < COUNT(all); i++)
        assert_int_equal(with(events, COUNT(events), all[i]).peak_bytes, 100 + 5 + 1000);
}

/* The run that makes a module's result again holds it no longer than its pack. */
TEST(test_a_result_made_again_dies)
{
    static const memopt_fit_event events[] = {
        BIRTH(X),  ENTER(0),   PACK(0, X), BIRTH(V),   PACK(1, V), DEATH(V),
        BIRTH(Y),  PACK(2, Y), LEAVE(0),   DEATH(X),   DEATH(Y),   BACKWARD,
        UNPACK(2), RELEASE(2), UNPACK(1),  RELEASE(1), RELEASE(0), BIRTH(Z),
    };
    memopt_fit_result r = with(events, COUNT(events), &run_again);
    assert_int_equal(r.peak_bytes, 100 + 1000);
    assert_true(r.seconds == 3);
}

/* An input that is freed cannot make the value: the pack holds the value. */
TEST(test_remake_without_input)
{
    static const memopt_fit_event events[] = {
        BIRTH(X), BIRTH(V), DEATH(X), PACK(1, V), DEATH(V),   BIRTH(Y),
        DEATH(Y), BACKWARD, BIRTH(G), UNPACK(1),  RELEASE(1),
    };
    memopt_fit_result r = with(events, COUNT(events), &remake);
    assert_true(r.seconds == 0);
    assert_int_equal(r.peak_bytes, with(events, COUNT(events), NULL).peak_bytes);
}

/* Packs within a recomputed module belong to it; the value's packs elsewhere do not. */
TEST(test_module_and_value)
{
    const memopt_fit_choice both[] = {run_again, offload};
    const uint32_t chosen[] = {0, 1};
    memopt_fit *fit = NULL;
    OK(make(layer, COUNT(layer), both, 2, &fit));
    memopt_fit_result r = replayed(fit, chosen, 2);
    assert_int_equal(r.peak_bytes, 165);
    assert_int_equal(r.host_bytes, 0);
    OK(memopt_fit_destroy(fit));
}

/* A module within one: x -> [a 20, [u 40, v 5] b 10, c 30] y. Each value but u and y is saved. */
TEST(test_a_module_within_one)
{
    enum { A = 1, U, B, C, Y2, G2, MOST };
    static const uint64_t sizes[MOST] = {10, 20, 40, 10, 30, 10, 10};
    static const uint32_t holds[] = {X, A};
    static const memopt_fit_event events[] = {
        BIRTH(X),  ENTER(0),   BIRTH(A),  PACK(0, A), ENTER(1),  BIRTH(U),   PACK(1, U), BIRTH(B),
        DEATH(U),  LEAVE(1),   DEATH(A),  PACK(2, B), BIRTH(C),  PACK(3, C), DEATH(B),   BIRTH(Y2),
        DEATH(C),  LEAVE(0),   DEATH(X),  DEATH(Y2),  BACKWARD,  BIRTH(G2),  UNPACK(3),  RELEASE(3),
        UNPACK(2), RELEASE(2), UNPACK(1), RELEASE(1), UNPACK(0), RELEASE(0),
    };
    const memopt_fit_choice choices[] = {{MEMOPT_FIT_RECOMPUTE, 0, 0, 0, 0, 1, 1, 3},
                                         {MEMOPT_FIT_RECOMPUTE, 1, 0, 0, 1, 1, 2, 2}};
    const uint32_t chosen[] = {0, 1};
    memopt_fit_tape t = MEMOPT_FIT_TAPE_INIT;
    memopt_fit *fit = NULL;
    t.events = events;
    t.event_count = COUNT(events);
    t.storage_bytes = sizes;
    t.storage_count = MOST;
    t.choices = choices;
    t.choice_count = 2;
    t.inputs = holds;
    t.input_count = 2;
    OK(memopt_fit_create(&t, &fit));
    assert_int_equal(replayed(fit, NULL, 0).peak_bytes, 120);      /* x, a, u, b, c, y */
    assert_int_equal(replayed(fit, chosen, 1).peak_bytes, 122);    /* x, g, a, u, b, c, and 2 * 1 */
    assert_int_equal(replayed(fit, chosen + 1, 1).peak_bytes, 82); /* in forward, with its 2 */
    memopt_fit_result r = replayed(fit, chosen, 2);
    assert_true(r.seconds == 5);
    assert_int_equal(r.peak_bytes, 96); /* x, g, a, u, b and 1 + 2 + 1 + 2: the outer run frees u */
    assert_int_equal(r.peak_module, 1);
    OK(memopt_fit_destroy(fit));
}

TEST(test_exclusions)
{
    const memopt_fit_choice some[] = {
        run_again, remake, offload, {MEMOPT_FIT_OFFLOAD, 0, X, 0, 0, 0, 0, 1}};
    const uint32_t pairs[][2] = {{0, 1}, {1, 2}, {1, 3}, {0, 3}, {2, 3}};
    memopt_fit_result r = MEMOPT_FIT_RESULT_INIT;
    memopt_fit *fit = NULL;
    OK(make(layer, COUNT(layer), some, COUNT(some), &fit));
    for (int i = 0; i < 3; i++) {
        REFUSED_SAYING("exclude each other", memopt_fit_replay(fit, pairs[i], 2, &r));
        OK(memopt_fit_replay(fit, pairs[i], 1, &r));
    }
    for (int i = 3; i < 5; i++)
        OK(memopt_fit_replay(fit, pairs[i], 2, &r));
    const uint32_t twice[] = {2, 2}, beyond[] = {4};
    REFUSED_SAYING("twice", memopt_fit_replay(fit, twice, 2, &r));
    REFUSED_SAYING("there are 4 only", memopt_fit_replay(fit, beyond, 1, &r));
    REFUSED(memopt_fit_replay(fit, NULL, 1, &r));
    REFUSED(memopt_fit_replay(NULL, twice, 1, &r));
    REFUSED(memopt_fit_replay(fit, twice, 1, NULL));
    OK(memopt_fit_destroy(fit));
}

/* The layer with the event at a place replaced. */
static void refuse_event(uint64_t place, memopt_fit_event event, const char *text)
{
    memopt_fit_event events[COUNT(layer)];
    memopt_fit *fit = NULL;
    memcpy(events, layer, sizeof layer);
    events[place] = event;
    REFUSED_SAYING(text, make(events, COUNT(layer), NULL, 0, &fit));
    assert_null(fit);
}

TEST(test_bad_events)
{
    refuse_event(3, (memopt_fit_event)BIRTH(X),
                 "event 3 (kind 1, subject 0): the storage is born twice");
    refuse_event(3, (memopt_fit_event)BIRTH(STORAGES), "no such storage");
    refuse_event(3, (memopt_fit_event)DEATH(V), "not alive");
    refuse_event(3, (memopt_fit_event)PACK(0, X), "packed twice");
    refuse_event(3, (memopt_fit_event)PACK(3, V), "not alive");
    refuse_event(3, (memopt_fit_event)PACK(23, X), "number of events");
    refuse_event(3, (memopt_fit_event)UNPACK(1), "not packed");
    refuse_event(3, (memopt_fit_event)ENTER(0), "entered twice");
    refuse_event(3, (memopt_fit_event)ENTER(23), "number of events");
    refuse_event(3, (memopt_fit_event)LEAVE(1), "entered last");
    refuse_event(3, (memopt_fit_event)BACKWARD, "within a module");
    refuse_event(3, (memopt_fit_event){9, 0, 0}, "no such kind");
    memopt_fit *fit = NULL;
    REFUSED_SAYING("module 0 is entered and not left", make(layer, 9, NULL, 0, &fit));
    refuse_event(14, (memopt_fit_event)BACKWARD, "twice");
    refuse_event(14, (memopt_fit_event)ENTER(1), "after forward");
    refuse_event(17, (memopt_fit_event)UNPACK(2), "released already");
}

static void refuse_choice(memopt_fit_choice c, const char *text)
{
    memopt_fit *fit = NULL;
    REFUSED_SAYING(text, make(layer, COUNT(layer), &c, 1, &fit));
    assert_null(fit);
}

TEST(test_bad_choices)
{
    memopt_fit_choice c = run_again;
    c.kind = 5;
    refuse_choice(c, "choice 0: there is no such kind (5)");
    c = run_again;
    c.module = 1;
    refuse_choice(c, "module is not on the tape (1)");
    c = remake;
    c.module = 1;
    refuse_choice(c, "module is not on the tape (1)");
    c = offload;
    c.storage = STORAGES;
    refuse_choice(c, "storage is not on the tape (7)");
    c = remake;
    c.input_count = 3;
    refuse_choice(c, "inputs end beyond those given (3)");
    c.input_count = 2;
    refuse_choice(c, "an input is not on the tape (7)");
    c = remake;
    c.seconds = NAN;
    refuse_choice(c, "nan seconds");
    c.seconds = -1;
    refuse_choice(c, "-1 seconds");
    c = remake;
    c.extra_bytes = UINT64_MAX / 2;
    refuse_choice(c, "62 bits");
}

TEST(test_bad_tapes)
{
    memopt_fit *fit = NULL;
    memopt_fit_tape t = MEMOPT_FIT_TAPE_INIT;
    OK(memopt_fit_create(&t, &fit)); /* nothing happens */
    assert_int_equal(replayed(fit, NULL, 0).peak_bytes, 0);
    OK(memopt_fit_destroy(fit));
    fit = NULL;
    REFUSED(memopt_fit_create(NULL, &fit));
    REFUSED(memopt_fit_create(&t, NULL));
    t.event_count = 1;
    REFUSED_SAYING("is NULL", memopt_fit_create(&t, &fit));
    t.event_count = ((uint64_t)1 << 24) + 1;
    REFUSED_SAYING("16777217 events (at most 16777216)", memopt_fit_create(&t, &fit));
    t.event_count = 0;
    t.choice_count = 4097;
    REFUSED_SAYING("4097 choices (at most 4096)", memopt_fit_create(&t, &fit));
    assert_null(fit);
    OK(memopt_fit_destroy(NULL));
}

/* Each call fails at its n-th host allocation: outputs stay, and nothing leaks. */
static memopt_status all_calls(void)
{
    const uint32_t chosen[] = {0};
    uint32_t out[1] = {99};
    uint64_t count = 77;
    memopt_fit *fit = NULL;
    memopt_fit_result replayed = {.struct_size = sizeof replayed, .peak_bytes = 77};
    memopt_fit_result solved = replayed;
    memopt_fit_options o = MEMOPT_FIT_OPTIONS_INIT;
    o.budget = 165;
    memopt_status status = make(layer, COUNT(layer), &run_again, 1, &fit);
    assert_true((status == MEMOPT_OK) == (fit != NULL));
    if (status == MEMOPT_OK)
        status = memopt_fit_replay(fit, chosen, 1, &replayed);
    assert_true((status == MEMOPT_OK) == (replayed.peak_bytes != 77));
    if (status == MEMOPT_OK)
        status = memopt_fit_solve(fit, &o, out, &count, &solved);
    assert_true((status == MEMOPT_OK) == (count != 77 && solved.peak_bytes != 77 && out[0] != 99));
    (void)memopt_fit_destroy(fit);
    return status;
}

TEST(test_no_host_memory)
{
    int64_t blocks = mo_memory_live_blocks(), failures = 0;
    for (int64_t n = 1;; n++) {
        mo_memory_fail_at(n);
        memopt_status status = all_calls();
        int struck = mo_memory_fault_struck();
        mo_memory_fail_at(0);
        assert_int_equal(mo_memory_live_blocks(), blocks);
        if (!struck)
            break;
        assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
        failures++;
    }
    assert_true(failures >= 12);
    OK(all_calls());
}
