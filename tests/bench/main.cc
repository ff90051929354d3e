/* The main of every benchmark: an object, so that no archive that has one of its own comes first. */
#include <benchmark/benchmark.h>

BENCHMARK_MAIN();
