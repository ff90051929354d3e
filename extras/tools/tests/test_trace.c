/* Traces: events and CSV text in, counts out; every odd event and malformed line told by place. */
#include "unit/allocator/support.h"

#include "base/memory.h"
#include "trace/trace.h"

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#define HEADER "Thread,Time,Action,Pointer,Size,Stream\n"

static memopt_trace *new_trace(void)
{
    memopt_trace *trace = NULL;
    OK(memopt_trace_create(NULL, &trace));
    return trace;
}

static memopt_trace_info told_of(const memopt_trace *trace)
{
    memopt_trace_info info = {.struct_size = sizeof info};
    OK(memopt_trace_get_info(trace, &info));
    return info;
}

static memopt_status parse(memopt_trace *trace, const char *text)
{
    memopt_status status = memopt_trace_parse_csv(trace, text, strlen(text));
    return status == MEMOPT_OK ? memopt_trace_end_csv(trace) : status;
}

/* The steps as text: "+bytes@block/stream", "~block/stream" for a recorded stream, and "-block" or
 * "-block/stream". */
static const char *steps_of(const memopt_trace *trace)
{
    static char text[4096];
    size_t at = 0;
    text[0] = '\0';
    for (uint64_t i = 0; i < trace->count; i++) {
        const mo_trace_step *s = &trace->steps[i];
        char one[96];
        if (s->bytes > 0)
            snprintf(one, sizeof one, "+%" PRIu64 "@%u/%u ", s->bytes, s->block, s->stream);
        else if (s->stream == MO_TRACE_SAME)
            snprintf(one, sizeof one, "-%u ", s->block);
        else
            snprintf(one, sizeof one, "%c%u/%u ", mo_trace_is_use(s) ? '~' : '-', s->block,
                     s->stream & ~MO_TRACE_USE);
        size_t size = strlen(one);
        assert_true(at + size < sizeof text);
        memcpy(text + at, one, size + 1);
        at += size;
    }
    return text;
}

static void expect_text(const char *csv, const char *steps)
{
    memopt_trace *trace = new_trace();
    OK(parse(trace, csv));
    assert_string_equal(steps_of(trace), steps);
    OK(memopt_trace_destroy(trace));
}

/* --- events ---------------------------------------------------------------------------------- */

TEST(test_events)
{
    const memopt_trace_event events[] = {
        {7, 100, 0, MEMOPT_TRACE_ALLOC},
        {0, 200, 99, MEMOPT_TRACE_ALLOC}, /* 0 is an id like any other */
        {7, 0, MEMOPT_TRACE_OWN_STREAM, MEMOPT_TRACE_FREE},
        {8, 50, 99, MEMOPT_TRACE_ALLOC}, /* takes the number of the freed block */
        {0, 0, 5, MEMOPT_TRACE_FREE},    /* on another stream */
        {8, 0, 99, MEMOPT_TRACE_FREE},   /* on its own, by name */
    };
    memopt_trace *trace = new_trace();
    OK(memopt_trace_add(trace, events, 6));
    assert_string_equal(steps_of(trace), "+100@0/0 +200@1/1 -0 +50@0/1 -1/2 -0 ");
    memopt_trace_info info = told_of(trace);
    assert_int_equal(info.events, 6);
    assert_int_equal(info.allocations, 3);
    assert_int_equal(info.streams, 3);
    assert_int_equal(info.peak_live_bytes, 300);
    assert_int_equal(info.peak_live_blocks, 2);
    assert_int_equal(info.live_bytes, 0);
    assert_int_equal(info.live_blocks, 0);
    assert_int_equal(info.unknown_frees + info.double_frees + info.lost_frees, 0);
    OK(memopt_trace_add(trace, NULL, 0));
    OK(memopt_trace_destroy(trace));
    OK(memopt_trace_destroy(NULL));
}

TEST(test_odd_events)
{
    const memopt_trace_event events[] = {
        {1, 0, 0, MEMOPT_TRACE_FREE},    /* unknown: from before */
        {2, 10, 0, MEMOPT_TRACE_ALLOC},  /* +10 */
        {2, 0, 0, MEMOPT_TRACE_FREE},    /* - */
        {2, 0, 0, MEMOPT_TRACE_FREE},    /* double */
        {3, 20, 0, MEMOPT_TRACE_ALLOC},  /* +20 */
        {3, 30, 0, MEMOPT_TRACE_ALLOC},  /* lost: - +30 */
        {4, 0, 0, MEMOPT_TRACE_ALLOC},   /* empty */
        {4, 0, 0, MEMOPT_TRACE_FREE},    /* of the empty one: nothing odd */
        {4, 0, 0, MEMOPT_TRACE_FREE},    /* double */
        {9, 0, 0, MEMOPT_TRACE_FREE},    /* unknown */
        {0, 77, 0, MEMOPT_TRACE_FAILED}, /* counted */
        /* of no living block: nothing */
        {9, 0, 5, MEMOPT_TRACE_RECORD_STREAM},
        {4, 0, 5, MEMOPT_TRACE_RECORD_STREAM},
        {2, 0, 5, MEMOPT_TRACE_RECORD_STREAM},
        {3, 0, 0, MEMOPT_TRACE_RECORD_STREAM}, /* of its own: nothing */
        {3, 0, 6, MEMOPT_TRACE_RECORD_STREAM}, /* ~ */
    };
    memopt_trace *trace = new_trace();
    OK(memopt_trace_add(trace, events, 5));
    OK(memopt_trace_add(trace, events + 5, 11));
    assert_string_equal(steps_of(trace), "+10@0/0 -0 +20@0/0 -0 +30@0/0 ~0/2 ");
    memopt_trace_info info = told_of(trace);
    assert_int_equal(info.events, 6);
    assert_int_equal(info.streams, 2);
    assert_int_equal(info.unknown_frees, 2);
    assert_int_equal(info.first_unknown, 1);
    assert_int_equal(info.double_frees, 2);
    assert_int_equal(info.first_double, 4);
    assert_int_equal(info.lost_frees, 1);
    assert_int_equal(info.first_lost, 6);
    assert_int_equal(info.empty_allocations, 1);
    assert_int_equal(info.failed_allocations, 1);
    assert_int_equal(info.failed_bytes, 77);
    assert_int_equal(info.peak_live_bytes, 30);
    assert_int_equal(info.live_bytes, 30);
    assert_int_equal(info.live_blocks, 1);
    OK(memopt_trace_destroy(trace));
}

TEST(test_failed_allocations_on_request)
{
    memopt_trace_options options = MEMOPT_TRACE_OPTIONS_INIT;
    memopt_trace *trace = NULL;
    options.with_failed = 1;
    OK(memopt_trace_create(&options, &trace));
    OK(parse(trace, HEADER "0,0,allocate,0x10,100,0\n0,0,allocate failure,(nil),900,3\n"));
    assert_string_equal(steps_of(trace), "+100@0/0 +900@1/1 -1 ");
    assert_int_equal(told_of(trace).peak_live_bytes, 1000);
    assert_int_equal(told_of(trace).failed_allocations, 1);
    OK(memopt_trace_destroy(trace));
}

TEST(test_refused_events)
{
    memopt_trace_event events[] = {{1, 10, 0, MEMOPT_TRACE_ALLOC}, {2, 10, 0, 5}};
    memopt_trace *trace = new_trace();
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "events[1].action is 5",
                 memopt_trace_add(trace, events, 2));
    events[1].action = 0;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "events[1].action is 0",
                 memopt_trace_add(trace, events, 2));
    events[1] = (memopt_trace_event){2, 10, MEMOPT_TRACE_OWN_STREAM, MEMOPT_TRACE_ALLOC};
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "events[1] allocates on",
                 memopt_trace_add(trace, events, 2));
    events[1].action = MEMOPT_TRACE_RECORD_STREAM;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "events[1] records MEMOPT_TRACE_OWN_STREAM",
                 memopt_trace_add(trace, events, 2));
    assert_int_equal(told_of(trace).events, 0);
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "trace is NULL", memopt_trace_add(NULL, events, 1));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "events is NULL", memopt_trace_add(trace, NULL, 1));
    events[0].bytes = UINT64_MAX;
    events[1] = (memopt_trace_event){2, 1, 0, MEMOPT_TRACE_ALLOC};
    FAILS_SAYING(MEMOPT_LIMIT_REACHED, "event 2: 1 bytes and the",
                 memopt_trace_add(trace, events, 2));
    assert_int_equal(told_of(trace).live_bytes, UINT64_MAX);
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "out_trace", memopt_trace_create(NULL, NULL));
    memopt_trace_options options = {.struct_size = 3};
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "struct_size", memopt_trace_create(&options, &trace));
    memopt_trace_info info = {.struct_size = 2};
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "struct_size", memopt_trace_get_info(trace, &info));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "trace is NULL", memopt_trace_get_info(NULL, &info));
    OK(memopt_trace_destroy(trace));
}

/* Ids and streams by the hundred thousand, against a model that knows them by their number. */
TEST(test_many_ids_and_streams)
{
    enum { IDS = 200000, STREAMS = 5000 };
    memopt_trace *trace = new_trace();
    uint64_t live = 0, peak = 0;
    for (uint64_t i = 0; i < IDS; i++) {
        uint64_t id = i * UINT64_C(0x100000001) << 9;
        memopt_trace_event e = {id, 1 + i % 1000, i % STREAMS << 40, MEMOPT_TRACE_ALLOC};
        OK(memopt_trace_add(trace, &e, 1));
        live += e.bytes;
        peak = live > peak ? live : peak;
        if (i % 3 == 0) {
            e.action = MEMOPT_TRACE_FREE;
            OK(memopt_trace_add(trace, &e, 1));
            live -= e.bytes;
        }
    }
    memopt_trace_info info = told_of(trace);
    assert_int_equal(info.allocations, IDS);
    assert_int_equal(info.events, IDS + (IDS + 2) / 3);
    assert_int_equal(info.streams, STREAMS);
    assert_int_equal(info.live_bytes, live);
    assert_int_equal(info.peak_live_bytes, peak);
    assert_int_equal(info.live_blocks, IDS - (IDS + 2) / 3);
    assert_int_equal(trace->slots, info.peak_live_blocks); /* numbers are given out again */
    assert_int_equal(info.lost_frees + info.unknown_frees + info.double_frees, 0);
    OK(memopt_trace_destroy(trace));
}

/* --- text ------------------------------------------------------------------------------------ */

TEST(test_text)
{
    expect_text(HEADER
                "0,1,allocate,0x7f10,512,0\n1,2,allocate,0x7f20,64,3\n0,3,free,0x7f10,512,0\n",
                "+512@0/0 +64@1/1 -0 ");
    /* no line end after the last; empty lines; DOS lines; blanks; quotes; a byte order mark */
    expect_text("\xEF\xBB\xBFThread,Time,Action,Pointer,Size,Stream\r\n\r\n  \r\n"
                "0,1, \"allocate\" ,\t0x10,\" 512 \",0\r\n\n0,1,free,0x10,512,0",
                "+512@0/0 -0 ");
    /* columns in another order and case, others beside them, no stream */
    expect_text("size,note,POINTER,action\n512,,ABCDEF,alloc\n,x,abcdef,deallocate\n",
                "+512@0/0 -0 ");
    /* hexadecimal without 0x; a stream that is an address; sizes of 64 bits */
    expect_text("Action,Pointer,Size,Stream\nallocate,ff,0x20,0x7fff00\nfree,0xFF,,(nil)\n",
                "+32@0/1 -0/0 ");
    expect_text("Action,Pointer,Size\nallocate,1,18446744073709551615\n",
                "+18446744073709551615@0/0 ");
    /* recorded streams, with a size and without; then a free on another stream */
    expect_text(HEADER "0,0,allocate,0x10,8,0\n0,0,record stream,0x10,8,3\n"
                       "0,0,RECORD STREAM,0x10,,4\n0,0,free,0x10,8,5\n",
                "+8@0/0 ~0/1 ~0/2 -0/3 ");
    /* free(NULL), and a failure without a pointer */
    expect_text(HEADER "0,0,free,0x0,0,0\n0,0,free,(nil),0,0\n0,0,allocate failure,,5,0\n", "");
}

/* Any cut into pieces gives the same steps, an empty piece is nothing. */
TEST(test_pieces)
{
    static const char text[] = HEADER "0,1,allocate,0x7f10,512,0\r\n0,2,allocate,0x7f20,64,3\n\n"
                                      "0,3,free,0x7f10,512,0";
    for (size_t size = 1; size < sizeof text; size++) {
        memopt_trace *trace = new_trace();
        for (size_t at = 0; at < sizeof text - 1; at += size) {
            size_t left = sizeof text - 1 - at;
            OK(memopt_trace_parse_csv(trace, text + at, left < size ? left : size));
            OK(memopt_trace_parse_csv(trace, NULL, 0));
        }
        OK(memopt_trace_end_csv(trace));
        assert_string_equal(steps_of(trace), "+512@0/0 +64@1/1 -0 ");
        assert_int_equal(told_of(trace).lines, 5);
        OK(memopt_trace_destroy(trace));
    }
}

TEST(test_two_texts)
{
    memopt_trace *trace = new_trace();
    OK(parse(trace, HEADER "0,1,allocate,0x10,512,0\n"));
    OK(parse(trace, "Action,Size,Pointer\nfree,0,10\nfree,0,10\n"));
    assert_string_equal(steps_of(trace), "+512@0/0 -0 ");
    assert_int_equal(told_of(trace).first_double, 3); /* its line in the second */
    OK(memopt_trace_destroy(trace));
}

TEST(test_malformed)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "trace: empty; a header"},
        {"\n \n", "trace: empty; a header"},
        {"0,1,allocate,0x10,512,0\n", "line 1: '0,1,allocate,0x10,512,0' is not a header"},
        {"Action,Pointer,Bytes\n", "column Size is missing"},
        {"\n\nAction;Pointer;Size\n", "line 3: 'Action;Pointer;Size' is not a header"},
        {"Action,Size,Pointer,Size\n", "line 1: two columns are named Size"},
        {HEADER "0,1,allocate,0x10,512\n", "line 2: '0,1,allocate,0x10,512' has 5 fields; the he"},
        {HEADER "0,1,allocate,0x10,512,0,\n", "has 7 fields; the header has 6"},
        {HEADER "nonsense\n", "line 2: 'nonsense' has 1 field; the header has 6"},
        {HEADER "\n0,1,alocate,0x10,512,0\n", "line 3: the action 'alocate' must be 'allocate'"},
        {HEADER "0,1,allocate,0x1g,512,0\n", "line 2: the pointer '0x1g' must be a hexadecimal"},
        {HEADER "0,1,allocate,,512,0\n", "line 2: the pointer '' must be a hexadecimal"},
        {HEADER "0,1,allocate,0x11112222333344445,512,0\n", "line 2: the pointer '0x111122223333"},
        {HEADER "0,1,allocate,0x10,-512,0\n", "line 2: the size '-512' must be a number of bytes"},
        {HEADER "0,1,allocate,0x10,,0\n", "line 2: the size '' must be a number of bytes"},
        {HEADER "0,1,allocate,0x10,5.5,0\n", "the size '5.5' must be a number of bytes"},
        {HEADER "0,1,allocate,0x10,18446744073709551616,0\n",
         "the size '18446744073709551616' must"},
        {HEADER "0,1,free,0x10,x,0\n", "the size 'x' must be a number of bytes"},
        {HEADER "0,1,allocate,0x10,512,a\n", "line 2: the stream 'a' must be a stream"},
        {HEADER "0,1,allocate,0x10,512,18446744073709551615\n", "must be a stream number"},
        {HEADER "0,1,allocate,0x10,512,0\n0,1,fre", "line 3: '0,1,fre' has 3 fields; the header "
                                                    "has 6; it is the last and has no line end"},
        {HEADER "0,1,\x01\xff,0x10,512,0\n", "the action '?\?' must"},
        {HEADER "0,1,allocate,0x1,9999999999999999999,0\n0,1,allocate,0x2,9999999999999999999,0\n",
         "line 3: 9999999999999999999 bytes and the 9999999999999999999"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memopt_trace *trace = new_trace();
        memopt_status wanted =
            i == sizeof cases / sizeof *cases - 1 ? MEMOPT_LIMIT_REACHED : MEMOPT_CORRUPT;
        FAILS_SAYING(wanted, cases[i].says, parse(trace, cases[i].text));
        FAILS_SAYING(wanted, "reading failed at line", memopt_trace_parse_csv(trace, HEADER, 4));
        FAILS_SAYING(wanted, "reading failed at line", memopt_trace_end_csv(trace));
        OK(memopt_trace_destroy(trace));
    }
}

TEST(test_absurd_lines)
{
    char *text = malloc(1 << 20);
    assert_non_null(text);
    memset(text, 'x', 1 << 20);
    memopt_trace *trace = new_trace();
    OK(memopt_trace_parse_csv(trace, HEADER, strlen(HEADER)));
    FAILS_SAYING(MEMOPT_CORRUPT, "line 2 is longer than 4096",
                 memopt_trace_parse_csv(trace, text, 1 << 20));
    OK(memopt_trace_destroy(trace));
    memset(text, ',', 1 << 20);
    text[3000] = '\n';
    trace = new_trace();
    FAILS_SAYING(MEMOPT_CORRUPT, "line 1: more than 64 columns",
                 memopt_trace_parse_csv(trace, text, 3001));
    OK(memopt_trace_destroy(trace));
    free(text);
}

/* What stands before a malformed line is there, and more can be added. */
/* One more for each event, as where each line of a trace is followed by an empty one. */
TEST(test_too_many_empty_lines)
{
    memopt_trace *trace = new_trace();
    char *text = malloc(MO_TRACE_EMPTY_LINES);
    memset(text, '\n', MO_TRACE_EMPTY_LINES);
    OK(memopt_trace_parse_csv(trace, text, MO_TRACE_EMPTY_LINES));
    OK(memopt_trace_parse_csv(trace, HEADER, strlen(HEADER)));
    OK(memopt_trace_parse_csv(trace, "0,0,alloc,1,1,0\n \r\n", 19));
    FAILS_SAYING(MEMOPT_CORRUPT, "line 1048580: more than 1048577 lines are empty",
                 memopt_trace_parse_csv(trace, "\n\n", 2));
    free(text);
    OK(memopt_trace_destroy(trace));
}

TEST(test_before_a_malformed_line)
{
    memopt_trace *trace = new_trace();
    FAILS_SAYING(MEMOPT_CORRUPT, "line 3",
                 parse(trace, HEADER "0,1,allocate,0x10,512,0\n0,1,fr\n0,1,f\n"));
    assert_string_equal(steps_of(trace), "+512@0/0 ");
    memopt_trace_event e = {0x10, 0, 0, MEMOPT_TRACE_FREE};
    OK(memopt_trace_add(trace, &e, 1));
    assert_string_equal(steps_of(trace), "+512@0/0 -0 ");
    OK(memopt_trace_destroy(trace));
}

TEST(test_files)
{
    char path[] = "trace-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    FILE *stream = fdopen(dup(file), "w");
    assert_non_null(stream);
    fprintf(stream, HEADER);
    for (int i = 0; i < 20000; i++)
        fprintf(stream, "0,%d,%s,0x%x,%d,0\n", i, i % 2 ? "free" : "allocate", i / 2 + 1, 100);
    fclose(stream);
    memopt_trace *trace = new_trace();
    assert_int_equal(lseek(file, 0, SEEK_SET), 0);
    OK(memopt_trace_read_csv(trace, file));
    assert_int_equal(told_of(trace).events, 20000);
    assert_int_equal(told_of(trace).lines, 20001);
    assert_int_equal(told_of(trace).peak_live_blocks, 1);
    FAILS_SAYING(MEMOPT_CORRUPT, "empty",
                 memopt_trace_read_csv(trace, file)); /* it is at its end */
    OK(memopt_trace_destroy(trace));
    close(file);
    trace = new_trace();
    FAILS_SAYING(MEMOPT_IO_ERROR, "cannot be read after line 0",
                 memopt_trace_read_csv(trace, file));
    file = open(".", O_RDONLY);
    FAILS_SAYING(MEMOPT_IO_ERROR, "irectory", memopt_trace_read_csv(trace, file));
    close(file);
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "trace is NULL", memopt_trace_read_csv(NULL, 0));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "trace is NULL", memopt_trace_parse_csv(NULL, "", 0));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "text is NULL", memopt_trace_parse_csv(trace, NULL, 1));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "trace is NULL", memopt_trace_end_csv(NULL));
    OK(memopt_trace_destroy(trace));
    unlink(path);
}

static int nothing_is_left(void **state)
{
    return mo_memory_live_blocks() == 0 ? 0 : -1;
}

int main(void)
{
    return run_all_tests(NULL, nothing_is_left);
}
