/* Block-wise codes and content hashes: the same bits as on the cpu. */
#include "conformance.h"

#include "device/device.h"
#include "kernels/hash/hash.h"
#include "kernels/optim/state_codes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* w->format is the format of states. */

/* Two codes in a byte. */
static int has_pairs(const world *w)
{
    return mo_format_is_4bit(w->format);
}

static uint64_t block_of(const world *w)
{
    return has_pairs(w) ? 128 : 256;
}

static uint64_t codes_of(const world *w, uint64_t count)
{
    return has_pairs(w) ? (count + 1) / 2 : count;
}

static void quantize(world *w, const memopt_tensor *source, const memopt_tensor *codes,
                     const memopt_tensor *scales, int is_signed)
{
    OK(memopt_quantize(w->device, w->format, codes, scales, source, is_signed, w->stream));
}

/* To each type that codes can become. */
static void all_types_back(world *w, uint64_t count, const memopt_tensor *codes,
                           const memopt_tensor *scales, int is_signed, uint64_t shift)
{
    for (int to = 0; to < WIDE_TYPES; to++) {
        memopt_tensor back = new_raw_tensor(w, count, float_types[to], NULL, shift);
        OK(memopt_dequantize(w->device, w->format, &back, codes, scales, is_signed, w->stream));
        result_of_tensor(w, &back);
        free_tensor(w, &back);
    }
}

static void there_and_back(world *w, const memopt_tensor *source, int is_signed, uint64_t shift)
{
    uint64_t count = source->count, blocks = (count + block_of(w) - 1) / block_of(w);
    memopt_tensor codes = new_raw_tensor(w, codes_of(w, count), MEMOPT_DTYPE_U8, NULL, shift);
    memopt_tensor scales = new_raw_tensor(w, blocks, MEMOPT_DTYPE_F32, NULL, shift);
    label(w, "%llu of %s, %s, shifted by %llu", (unsigned long long)count,
          memopt_dtype_name(source->dtype), is_signed ? "signed" : "unsigned",
          (unsigned long long)shift);
    quantize(w, source, &codes, &scales, is_signed);
    result_of_tensor(w, &codes);
    result_of_tensor(w, &scales);
    all_types_back(w, count, &codes, &scales, is_signed, shift);
    free_tensor(w, &codes);
    free_tensor(w, &scales);
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

/* The map as the library tells it; how many values it has. */
static int read_map(world *w, int is_signed, float map[256])
{
    int values = has_pairs(w) ? 16 : 256;
    OK(memopt_state_map(w->format, is_signed, map));
    label(w, "map");
    result(w, map, (size_t)values * sizeof *map);
    return values;
}

/* Every code, and the floats around the middle between two of them, in a block whose largest value
 * is the map's; then blocks of zeros and of one value. */
static void every_code_agrees(world *w)
{
    enum { BLOCKS = 12 };
    uint64_t block = block_of(w);
    const float top = 1.0f;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        float map[256], values[BLOCKS * 256] = {0};
        int finite = read_map(w, is_signed, map);
        for (int i = 0; i < finite && (uint64_t)i < block; i++) {
            uint32_t bits;
            float middle = i + 1 < finite ? (map[i] + map[i + 1]) * 0.5f : top;
            memcpy(&bits, &middle, sizeof bits);
            values[i] = map[i];
            for (int k = 0; k < 8; k++) { /* eight blocks of near-middles */
                uint32_t near = bits + (uint32_t)k - 4;
                memcpy(&values[(uint64_t)(k + 1) * block + (uint64_t)i], &near, sizeof near);
            }
        }
        for (uint64_t i = 0; i < block; i++) {
            values[10 * block + i] = 1e-38f;
            values[11 * block + i] = i == 77 ? 3e38f : 1e-10f;
        }
        for (uint64_t k = 0; k < 9; k++) /* the last place: no middle is there, nor 1 in block 0 */
            values[k * block + block - 1] = top;
        memopt_tensor source = new_tensor(w, BLOCKS * block, MEMOPT_DTYPE_F32, values);
        there_and_back(w, &source, is_signed, 0);
        free_tensor(w, &source);
    }
}

/* Codes that nothing was quantised to: every byte, under scales of every kind. */
static void every_byte_decodes(world *w)
{
    static const float kinds[] = {1.0f, 0.0f, 1e-40f, 3e38f, INFINITY, NAN, -2.0f};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    uint64_t units = has_pairs(w) ? 2 : 1, per_kind = 256 * units / block_of(w);
    unsigned char bytes[KINDS * 256];
    float scales[KINDS * 4];
    for (int i = 0; i < KINDS * 256; i++)
        bytes[i] = (unsigned char)i;
    for (uint64_t i = 0; i < KINDS * per_kind; i++)
        scales[i] = kinds[i / per_kind];
    for (uint64_t shift = 0; shift < 2; shift++) {
        memopt_tensor codes = new_raw_tensor(w, KINDS * 256, MEMOPT_DTYPE_U8, bytes, shift);
        memopt_tensor scale = new_raw_tensor(w, KINDS * per_kind, MEMOPT_DTYPE_F32, scales, shift);
        for (int is_signed = 0; is_signed < 2; is_signed++) {
            label(w, "bytes, %s, shifted by %llu", is_signed ? "signed" : "unsigned",
                  (unsigned long long)shift);
            all_types_back(w, KINDS * 256 * units, &codes, &scale, is_signed, shift);
        }
        free_tensor(w, &codes);
        free_tensor(w, &scale);
    }
}

/* Blocks with values that are not finite, and what is negative in a second moment. */
static void any_values_agree(world *w)
{
    enum { COUNT = 40 * 256 + 77 };
    float *values = host_memory(COUNT * sizeof *values);
    fill_floats(values, COUNT, 17);
    fill_any_floats(values, 20 * 256, 19);
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int type = 0; type < WIDE_TYPES; type++) {
            memopt_tensor source = new_tensor(w, COUNT, float_types[type], values);
            there_and_back(w, &source, is_signed, 0);
            free_tensor(w, &source);
        }
    free(values);
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

#define OF_FORMAT(suffix, format)                                                                  \
    {"codes_sizes" suffix, sizes_agree, 1, 0, format},                                             \
        {"codes_every_code" suffix, every_code_agrees, 1, 0, format},                              \
        {"codes_every_byte" suffix, every_byte_decodes, 1, 0, format},                             \
        {"codes_any_values" suffix, any_values_agree, 1, 0, format},                               \
    {                                                                                              \
        "codes_all_halves" suffix, all_halves_agree, 1, 0, format                                  \
    }

const conformance_case code_cases[] = {
#define CODES(suffix, format) OF_FORMAT("_" #suffix, MO_STATE_##format),
    MO_EACH_CODE(CODES){"hash", hashes_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
