/*
 * OpenBLAS on processors that it does not know.
 */
#ifndef GPT_BLAS_H
#define GPT_BLAS_H

/* An OpenBLAS that is older than the processor falls back to its AVX2 kernels where AVX-512 ones,
 * twice as fast, would run. It takes advice only while it is being loaded, from the environment: so
 * in that case this starts the program anew with OPENBLAS_CORETYPE set, and else returns. */
void blas_choose_kernels(char **argv);

#endif
