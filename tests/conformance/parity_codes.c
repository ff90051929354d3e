/* Block-wise codes and content hashes: the same bits as on the cpu. */
#include "conformance.h"

#include "device/device.h"
#include "kernels/hash.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 };

/* To codes and back to each type that codes can become. */
static void there_and_back(world *w, const memopt_tensor *source, int is_signed, uint64_t shift)
{
    uint64_t count = source->count;
    memopt_tensor codes = new_raw_tensor(w, count, MEMOPT_DTYPE_U8, NULL, shift);
    memopt_tensor absmax =
        new_raw_tensor(w, (count + BLOCK - 1) / BLOCK, MEMOPT_DTYPE_F32, NULL, shift);
    label(w, "%llu of %s, %s, shifted by %llu", (unsigned long long)count,
          memopt_dtype_name(source->dtype), is_signed ? "signed" : "unsigned",
          (unsigned long long)shift);
    OK(memopt_quantize_blockwise(w->device, source, &codes, &absmax, is_signed, BLOCK, w->stream));
    result_of_tensor(w, &codes);
    result_of_tensor(w, &absmax);
    for (int to = 0; to < WIDE_TYPES; to++) {
        memopt_tensor back = new_raw_tensor(w, count, float_types[to], NULL, shift);
        OK(memopt_dequantize_blockwise(w->device, &codes, &absmax, &back, is_signed, BLOCK,
                                       w->stream));
        result_of_tensor(w, &back);
        free_tensor(w, &back);
    }
    free_tensor(w, &codes);
    free_tensor(w, &absmax);
}

static void sizes_agree(world *w)
{
    uint32_t sizes = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    uint64_t most = size[sizes - 1];
    float *values = host_memory(4 * most);
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        fill_floats(values, most, 31);
        for (uint64_t i = 0; i < most && !is_signed; i++)
            values[i] = values[i] < 0 ? -values[i] : values[i];
        for (int type = 0; type < WIDE_TYPES; type++)
            for (uint32_t i = 0; i < sizes; i++) {
                memopt_tensor source =
                    new_shifted_tensor(w, size[i], float_types[type], values, i % 2);
                there_and_back(w, &source, is_signed, i / 2 % 2);
                free_tensor(w, &source);
            }
    }
    free(values);
}

/* Every code, and the floats around the middle between two of them, in a block whose largest value
 * is 1; then blocks of zeros and of one value. */
static void every_code_agrees(world *w)
{
    enum { COUNT = 12 * BLOCK };
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        float map[BLOCK], values[COUNT] = {0};
        OK(memopt_dynamic_map(is_signed, map));
        label(w, "map");
        result(w, map, sizeof map);
        for (int i = 0; i < BLOCK; i++) {
            uint32_t bits;
            float middle = i + 1 < BLOCK ? (map[i] + map[i + 1]) * 0.5f : 1.0f;
            memcpy(&bits, &middle, sizeof bits);
            values[i] = map[i];
            for (int k = 0; k < 8; k++) { /* eight blocks of near-middles, led by a 1 */
                uint32_t near = bits + (uint32_t)k - 4;
                memcpy(&values[(k + 1) * BLOCK + i], &near, sizeof near);
            }
            values[10 * BLOCK + i] = 1e-38f;
            values[11 * BLOCK + i] = i == 77 ? 3e38f : 1e-10f;
        }
        for (int k = 1; k < 9; k++)
            values[k * BLOCK] = 1.0f;
        memopt_tensor source = new_tensor(w, COUNT, MEMOPT_DTYPE_F32, values);
        there_and_back(w, &source, is_signed, 0);
        free_tensor(w, &source);
    }
}

/* All values of a 16-bit type, in the order of their bits. */
static void all_halves_agree(world *w)
{
    uint16_t *codes = host_memory(65536 * sizeof *codes);
    for (uint32_t i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    for (int type = 1; type < WIDE_TYPES; type++) {
        memopt_tensor source = new_raw_tensor(w, 65536, float_types[type], codes, 0);
        there_and_back(w, &source, 1, 0);
        free_tensor(w, &source);
    }
    free(codes);
}

/* Hashes of every alignment and of sizes around words and granules. */
static void hashes_agree(world *w)
{
    static const uint64_t sizes[] = {1, 7, 8, 9, 63, 4095, 4096, 4097, 8191, 8192, 20000, 100003};
    enum { MOST = 100003 + 16 };
    unsigned char *data = host_memory(MOST);
    fill_bytes(data, MOST, 41);
    memopt_tensor bytes = new_raw_tensor(w, MOST, MEMOPT_DTYPE_U8, data, 0);
    memopt_tensor hashes = new_raw_tensor(w, MOST / MO_HASH_GRANULE + 1, MEMOPT_DTYPE_I64, NULL, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint64_t shift = 0; shift < 10; shift += 1 + 2 * (i % 2)) {
            mo_hash_granules_args args = {(char *)bytes.data + shift, hashes.data, sizes[i]};
            uint64_t granules = (sizes[i] + MO_HASH_GRANULE - 1) / MO_HASH_GRANULE;
            OK(mo_launch(w->device, w->stream, &mo_kernel_hash_granules, &args, granules));
            label(w, "hash of %llu bytes at %llu", (unsigned long long)sizes[i],
                  (unsigned long long)shift);
            result_of(w, hashes.data, granules * sizeof(uint64_t));
        }
    free_tensor(w, &bytes);
    free_tensor(w, &hashes);
    free(data);
}

const conformance_case code_cases[] = {
    {"codes_sizes", sizes_agree, 1, 0, 0},
    {"codes_every_code", every_code_agrees, 1, 0, 0},
    {"codes_all_halves", all_halves_agree, 1, 0, 0},
    {"hash", hashes_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
