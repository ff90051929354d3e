memopt_kernel_sources(accumulate_ref.c accumulate_avx2.c cast_ref.c cast_avx2.c cast_avx512.c)
