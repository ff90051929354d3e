/*
 * Throws PyTorch's C++ exceptions from C.
 *
 * libc10.so exports a function that throws c10::Error, and the constructor of c10::OutOfMemoryError
 * (source location, std::string) with its type. The rest is the Itanium C++ ABI, which gcc and
 * clang share, and the layout of libstdc++'s std::string, which the constructor's mangled name
 * stands for. The functions are looked up once and stay loaded: torch cannot be unloaded.
 */
#include "pluggable/pluggable.h"

#include "base/error.h"
#include "base/lock.h"

#include <dlfcn.h>
#include <string.h>

/* c10::SourceLocation. */
typedef struct source_location {
    const char *function, *file;
    uint32_t line;
} source_location;

/* libstdc++'s std::string; data is at room where the text is short. */
typedef struct cxx_string {
    char *data;
    size_t size;
    union {
        char room[16];
        size_t capacity;
    } as;
} cxx_string;

/* More than any c10::Error; torch 2.15's has about 140 bytes. */
enum { EXCEPTION_BYTES = 1024 };

/* In the order of `names`. The vtable's third entry is the destructor that destroys in place. */
typedef struct cxx {
    memopt_pluggable_raise check_fail;
    void (*construct)(void *self, source_location where, cxx_string *what);
    void *type;
    void **vtable;
    void *(*allocate)(size_t bytes);
    void (*throw_it)(void *exception, void *type, void (*destroy)(void *));
    void *(*new_bytes)(size_t bytes);
    void (*delete_bytes)(void *bytes);
} cxx;

static const char *const names[] = {
    "_ZN3c106detail14torchCheckFailEPKcS2_jS2_",
    ("_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_"
     "traitsIcESaIcEEE"),
    "_ZTIN3c1016OutOfMemoryErrorE",
    "_ZTVN3c1016OutOfMemoryErrorE",
    "__cxa_allocate_exception",
    "__cxa_throw",
    "_Znwm",
    "_ZdlPv",
};

enum { NAME_COUNT = sizeof names / sizeof names[0] };

static cxx torch; /* written before its function is handed out, and never changed then */

static void throw_out_of_memory(source_location where, const char *message)
{
    void (*destroy)(void *);
    size_t length = strlen(message);
    cxx_string what = {torch.new_bytes(length + 1), length, {.capacity = length}};
    memcpy(what.data, message, length + 1);
    void *exception = torch.allocate(EXCEPTION_BYTES);
    torch.construct(exception, where, &what); /* which takes the text, as a rule */
    if (what.data != what.as.room)
        torch.delete_bytes(what.data);
    memcpy(&destroy, &torch.vtable[2], sizeof destroy);
    torch.throw_it(exception, torch.type, destroy);
}

static void raise_torch(const char *function, const char *file, uint32_t line, const char *message)
{
    static const char *const starts[] = {"CUDA out of memory.", "HIP out of memory."};
    source_location where = {function, file, line};
    for (int i = 0; i < 2; i++)
        if (strncmp(message, starts[i], strlen(starts[i])) == 0)
            throw_out_of_memory(where, message);
    torch.check_fail(function, file, line, message);
}

memopt_status memopt_pluggable_find_torch(const char *libc10, memopt_pluggable_raise *out_raise)
{
    void *found[NAME_COUNT];
    MO_NOT_NULL("pluggable_find_torch", libc10, out_raise);
    void *library = dlopen(libc10, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (library == NULL)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "pluggable_find_torch: the program has not loaded \"%.200s\"; import torch "
                       "first",
                       libc10);
    for (size_t i = 0; i < NAME_COUNT; i++) {
        found[i] = dlsym(library, names[i]);
        if (found[i] == NULL) {
            dlclose(library);
            return mo_fail(MEMOPT_NOT_FOUND, "pluggable_find_torch: \"%.200s\" has no %s", libc10,
                           names[i]);
        }
    }
    mo_lock(&mo_plug_lock);
    if (torch.type == NULL)
        memcpy(&torch, found, sizeof torch);
    mo_unlock(&mo_plug_lock);
    *out_raise = raise_torch;
    return MEMOPT_OK;
}
