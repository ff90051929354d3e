/* Any bytes as a configuration string: accepted with values in their ranges, or refused with a
 * message and nothing written. */
#include "base/config.h"
#include "base/error.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

static int power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static void require_ranges(const mo_config *c)
{
    REQUIRE(c->large_segment_size_mb > 10);
    REQUIRE(c->max_split_size_mb == 0 || c->max_split_size_mb >= c->large_segment_size_mb);
    REQUIRE(c->max_non_split_rounding_mb == 0 ||
            c->max_non_split_rounding_mb >= c->large_segment_size_mb);
    REQUIRE(c->garbage_collection_threshold >= 0 && c->garbage_collection_threshold < 1);
    REQUIRE(c->per_process_memory_fraction >= 0 && c->per_process_memory_fraction <= 1);
    REQUIRE(c->idle_release_seconds >= 0 && c->idle_release_seconds <= 1 << 30);
    REQUIRE(c->expandable_segments == 0 || c->expandable_segments == 1);
    REQUIRE(c->throw_on_cudamalloc_oom == 0 || c->throw_on_cudamalloc_oom == 1);
    REQUIRE(power_of_two(c->pinned_num_register_threads) && c->pinned_num_register_threads <= 128);
    REQUIRE(c->backend >= 0 && c->backend <= 2);
    for (int i = 0; i < MO_CONFIG_SLOTS; i++)
        REQUIRE(c->roundup_power2_divisions.slot[i] == 0 ||
                power_of_two(c->roundup_power2_divisions.slot[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mo_config config, untouched;
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    memset(&config, 0xA5, sizeof config);
    memcpy(&untouched, &config, sizeof config);
    memopt_status status = mo_config_parse(text, &config);
    if (status == MEMOPT_OK) {
        require_ranges(&config);
    } else {
        REQUIRE(status == MEMOPT_INVALID_ARGUMENT);
        REQUIRE(memcmp(&config, &untouched, sizeof config) == 0);
        unsigned long column = 0;
        REQUIRE(sscanf(memopt_last_error(), "allocator config: column %lu: ", &column) == 1);
        REQUIRE(column >= 1 && column <= strlen(text) + 1);
    }
    free(text);
    return 0;
}
