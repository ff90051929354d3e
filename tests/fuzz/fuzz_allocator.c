/*
 * Sequences of operations on allocators and pools, from a fuzzer's bytes: two of features, then
 * five for each operation. The oracle (tests/oracle) says what must hold after each one. An input
 * that fails is made small by `oracle_cpu cpu --bytes FILE`.
 */
#include "oracle/oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MOST_STEPS = 120 };
    static oracle_op ops[MOST_STEPS];
    static oracle_seen seen = {.print_case = 1};
    oracle_case c = {.device = "cpu", .ops = ops, .seed = size};
    oracle_decode(&c, data, size, MOST_STEPS);
    oracle_run(&c, &seen);
    return 0;
}
