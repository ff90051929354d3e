memopt_kernel_sources(cast_ref.c cast_avx2.c cast_avx512.c)
