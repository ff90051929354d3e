memopt_kernel_sources(hash_ref.c hash_avx512.c)
