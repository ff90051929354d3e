/*
 * What answers a monitor (memopt/tools/publish.h):
 *
 *   publish.c  the handle, its allocators, and serving
 *   answer.c   the line of JSON
 *   socket.c   where the socket lies, and making it
 *
 * `lock` guards the list and the answer's text. Order: it comes before mo_plug_lock, and that one
 * before an allocator's. Nothing that blocks is called under it.
 */
#ifndef MO_ALLOCATOR_PUBLISH_H
#define MO_ALLOCATOR_PUBLISH_H

#include "memopt/tools/publish.h"

#include <pthread.h>
#include <sys/types.h>

enum {
    MO_PUBLISH_PATH = 108, /* as sockaddr_un has it */
    MO_PUBLISH_LIST = 256, /* allocators at most, so that an answer fits any socket's buffer */
    MO_PUBLISH_HEAD = 128, /* bytes of an answer around its entries */
    MO_PUBLISH_ENTRY = 320 /* bytes of one entry at most: a name and six numbers */
};

struct memopt_publisher {
    pthread_mutex_t lock;
    memopt_allocator **allocators;
    uint64_t count, capacity;
    char *text; /* room for an answer with all that is listed */
    uint64_t room;
    int pluggable; /* those of memopt/tools/pluggable.h too */
    int listener;
    pid_t owner; /* who opened it */
    dev_t device;
    ino_t inode; /* of the socket's file */
    char path[MO_PUBLISH_PATH];
};

/* Makes the socket at `path` (NULL: the default) and notes it in the publisher. */
memopt_status mo_publish_listen(memopt_publisher *publisher, const char *path);

/* Lock held: writes the answer into the publisher's text; its bytes. */
uint64_t mo_publish_answer(memopt_publisher *publisher);

#endif
