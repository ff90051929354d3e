/*
 * CRC-32 of the GOLDEN_COUNT outputs of test_cast_forms.c's inputs, {to nearest, stochastic} for
 * each pair: rows from, columns to f32, f16, bf16, e4m3, e5m2. Every back end must give these.
 */
enum { GOLDEN_COUNT = 10007 };

static const uint32_t golden_cast[5][5][2] = {
    {{0x44e57d22, 0x44e57d22},
     {0xe00c670b, 0x010acd2e},
     {0xf8175699, 0x60b215d3},
     {0x9a366ba4, 0x442ad3c9},
     {0x83d59da5, 0xb20f0288}}, /* f32 */
    {{0xe6784e62, 0xe6784e62},
     {0xf7583f57, 0xf7583f57},
     {0x60e93b9a, 0x195b695d},
     {0x89160a53, 0x18741d5f},
     {0x3cc62f66, 0x11fd9574}}, /* f16 */
    {{0x1ef39345, 0x1ef39345},
     {0x366ba1e6, 0x32d307e3},
     {0xf7583f57, 0xf7583f57},
     {0x29144a2a, 0xe92c4937},
     {0x51430d41, 0x015b5288}}, /* bf16 */
    {{0x22d62c0d, 0x22d62c0d},
     {0xe6b7ed4c, 0xe6b7ed4c},
     {0xee481694, 0xee481694},
     {0xa783844b, 0xa783844b},
     {0xe152d795, 0x6e2baa8b}}, /* e4m3 */
    {{0xb42e6a03, 0xb42e6a03},
     {0x24a95e0c, 0x24a95e0c},
     {0xfba949ce, 0xfba949ce},
     {0x34536b3e, 0x579fd5fb},
     {0xa783844b, 0xa783844b}}, /* e5m2 */
};
