/*
 * train_gpt: a byte-level GPT that trains on a device of a chosen size.
 *
 * Where to look: memory.c has the library's handles, layer.c the checkpoint regions, saved.c
 * save-on-CPU, train.c the optimizer and the loss scaler, resume.c what a run must keep to go on.
 */
#include "demo.h"
#include "progress.h"
#include "report.h"
#include "resume.h"

#include <stdio.h>

#define HELD_OUT_BATCHES 4

static memopt_status train(trainer *t)
{
    const options *o = &t->options;
    progress bar;
    step_result r = {.scale = 1};
    progress_begin(&bar, t, o->steps);
    while (t->step < o->steps) {
        TRY(trainer_step(t, &r));
        TRY(progress_step(&bar, t, &r));
        int last = t->step == o->steps;
        if (o->save && (last || (o->save_every && t->step % o->save_every == 0)))
            TRY(resume_save(t, o->save));
    }
    progress_end(&bar);
    if (o->rank != 0) /* the others have the same to tell */
        return MEMOPT_OK;

    double held_out;
    memory_figures figures;
    TRY(trainer_evaluate(t, HELD_OUT_BATCHES, &held_out));
    TRY(memory_measure(&t->memory, &figures));
    report_summary(t, &figures, &r, held_out);
    return MEMOPT_OK;
}

static memopt_status run(const options *o, const corpus *text)
{
    trainer t;
    TRY(trainer_create(&t, o, text));
    memopt_status status = MEMOPT_OK;
    if (o->resume)
        status = resume_load(&t, o->resume);
    if (status == MEMOPT_OK)
        status = train(&t);
    memopt_status ended = trainer_destroy(&t);
    return status == MEMOPT_OK ? ended : status;
}

int main(int argc, char **argv)
{
    options o = options_default();
    switch (options_parse(&o, argc, argv)) {
    case OPTIONS_HELP:
        return EXIT_CODE_OK;
    case OPTIONS_WRONG:
        return EXIT_CODE_USAGE;
    case OPTIONS_RUN:
        break;
    }
    if (o.demo)
        return demo_run(&o);

    corpus text;
    ranks all = {0, 0};
    memopt_status status = o.ranks ? ranks_join(&all, o.ranks) : MEMOPT_OK;
    o.rank = all.rank;
    o.quiet |= all.rank != 0;
    if (status == MEMOPT_OK)
        status = text_read(&text, o.text, (size_t)o.context + 1);
    if (status == MEMOPT_OK) {
        status = run(&o, &text);
        text_free(&text);
    }
    int code = status == MEMOPT_OK ? EXIT_CODE_OK : gpt_report_failure(status);
    ranks_leave(&all, code);
    return code;
}
