memopt_kernel_sources(optim_ref.c adamw_avx2.c blockcode_avx2.c optim_avx512.c adamw8_avx512.c
                      adamw32_avx512.c)
