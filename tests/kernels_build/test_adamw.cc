/* AdamW's parameters by approximations (kernels/optim/adamw_gpu.h) are the exact ones wherever they are decided: for
 * moments of every magnitude, those below all normal numbers and 0 among them, and for eps down to the border. Here a
 * root of what is not normal is 0, as on some GPUs. */
#include "kernels/optim/adamw_gpu.h"

#include "host_words.h"

#include <stdio.h>

namespace
{

enum { N = 8, PACKS = 40000 };

const float BORDER = 0x1p-37f;
uint64_t state = 1;

uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

/* A number with an exponent from `from` to `to`; 0 is below all normal ones. */
float number(int from, int to, uint32_t signs)
{
    uint32_t exponent = (uint32_t)(from + (int)draw((uint32_t)(to - from + 1)));
    return mo_f32_from_bits((draw(2) & signs) << 31 | exponent << 23 | draw(1u << 23));
}

/* How many packs are decided, and of these wrong, with this eps. */
struct counts {
    int plain, decided_bf16, wrong_bf16, decided_f32, wrong_f32;
};

counts try_eps(float eps)
{
    mo_rule_coef c = {};
    counts found = {};
    c.rate = -1e-3f;
    c.decay = -1e-5f;
    c.eps = eps;
    found.plain = mo_coef_is_plain(&c);
    const mo_near_rates near = mo_near_rates_of(&c);
    for (int i = 0; i < PACKS; i++) {
        float p[N], narrow[N], m[N], v[N], v_bound[N];
        uint32_t words[N];
        const int tiny = i % 2,
                  top = tiny ? 1 : 160; /* v all below the normal numbers, or of any size */
        for (int k = 0; k < N; k++) {
            p[k] = number(100, 130, 1);
            narrow[k] = mo_bf16_to_f32(mo_f32_to_bf16(p[k]));
            v[k] = draw(20) == 0 ? 0.0f : number(0, top, 0);
            m[k] = draw(20) == 0 ? 0.0f : number(tiny ? 40 : 0, tiny ? 90 : 140, 1);
            v_bound[k] = v[k];
        }
        mo_pack_range range = {mo_largest<N>(m), mo_largest_positive<N>(v), 0, mo_least<N>(v)};
        if (mo_adamw_bf16<N>(c.decay, &near, narrow, m, v, mo_adamw_beyond(&range), words)) {
            found.decided_bf16++;
            for (int k = 0; k < N; k++) {
                float exact = mo_adamw_parameter(&c, narrow[k], m[k], v_bound[k]);
                found.wrong_bf16 += (words[k / 2] >> k % 2 * 16 & 0xffffu) != mo_f32_to_bf16(exact);
            }
        }
        if (mo_adamw_f32<N>(&c, &range, p, m, v, mo_adamw_beyond(&range), words)) {
            found.decided_f32++;
            for (int k = 0; k < N; k++)
                found.wrong_f32 +=
                    words[k] != mo_f32_bits(mo_adamw_parameter(&c, p[k], m[k], v[k]));
        }
    }
    return found;
}

int check(const char *what, float eps, int good)
{
    if (!good)
        fprintf(stderr, "eps %a: %s\n", (double)eps, what);
    return !good;
}

} // namespace

int main()
{
    const float plain[] = {1.0f, 1e-8f, 0x1p-36f, BORDER};
    int failures = 0;
    for (float eps : plain) {
        counts found = try_eps(eps);
        failures += check("not for approximations", eps, found.plain);
        failures += check("bf16 parameters are wrong", eps, found.wrong_bf16 == 0);
        failures += check("f32 parameters are wrong", eps, found.wrong_f32 == 0);
        failures += check("few packs are decided", eps,
                          found.decided_bf16 > PACKS / 2 && found.decided_f32 > PACKS / 2);
    }
    const float less = mo_f32_from_bits(mo_f32_bits(BORDER) - 1);
    failures += check("for approximations", less, !try_eps(less).plain);
    /* What the border is for. */
    failures += check("bf16 parameters are right", 0x1p-60f, try_eps(0x1p-60f).wrong_bf16 > 0);
    printf("%d failures\n", failures);
    return failures != 0;
}
