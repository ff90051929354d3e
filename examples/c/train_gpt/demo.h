/*
 * The demo: a model that does not fit its device, trained on it all the same.
 */
#ifndef GPT_DEMO_H
#define GPT_DEMO_H

#include "options.h"

/* Runs it with the text and threads of o; returns main()'s exit code: 0 only if all that it claims
 * was so. */
int demo_run(const options *o);

#endif
