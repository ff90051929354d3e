memopt_kernel_sources(reduce_ref.c reduce_avx2.c reduce_avx512.c scale_ref.c scale_avx2.c
                      scale_avx512.c)
