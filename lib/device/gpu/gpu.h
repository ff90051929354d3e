/*
 * What the CUDA and HIP back ends share: loaded drivers, device handles, errors.
 *
 * A driver is loaded once a process and never unloaded. A device handle holds no lock while it
 * calls the driver; its lock guards the sets below only.
 *
 * Every operation brackets its driver calls with mo_gpu_enter and mo_gpu_leave, which make the
 * device's context current on the thread and put back what was. Once a driver call says that the
 * context is dead, the handle is lost for good: operations return DEVICE_LOST without touching the
 * driver, and calls that end something (MO_GPU_ENDS) still try and then succeed, so that handles
 * can be closed.
 */
#ifndef MO_DEVICE_GPU_GPU_H
#define MO_DEVICE_GPU_GPU_H

#include "base/library.h"
#include "device/front/handle.h"
#include "device/gpu/driver_calls.h"

#include "kernels/core/gpu_images.h"

enum { MO_GPU_TARGET_BYTES = 64 };

typedef struct mo_gpu_driver mo_gpu_driver;
typedef struct mo_gpu_device mo_gpu_device;

/* What differs between vendors (cuda.c, hip.c). Functions that return int return the driver's
 * status. */
typedef struct mo_gpu_vendor {
    const char *name;             /* "cuda" */
    const char *maker;            /* "NVIDIA" */
    const char *const *libraries; /* NULL-ended, in the order in which they are tried */
    const char *const *compilers; /* the same for the run-time compiler */
    const char *compiler_prefix;  /* of its entry points: "nvrtc" */
    /* The variable that says which compilers there are, or NULL, and where packages for Python
     * bring them along, below site-packages; NULL-ended. */
    const char *compiler_variable;
    const char *const *compiler_wheels;
    const mo_images *images;
    /* The oldest driver with the same numbers, in its own version count, and its name; 0: any with
     * the required entry points. */
    int oldest_version;
    const char *oldest_name;
    uint32_t most_launch_threads; /* threads of one launch in all; 0: no limit but the grid's */
    int unmaps_runs;              /* one call may unmap several whole mappings */
    const char *device_file;      /* without it there is no device; NULL: that is not known */
    /* Writes into no_map why the driver's virtual memory is not even tried (vm_check.c), if so.
     * NULL: the driver's word is enough. */
    void (*distrust_vm)(mo_gpu_device *device);

    /* Looks up every entry point; fills driver->calls and what is its own. */
    void (*resolve)(mo_gpu_driver *driver);
    const char *(*error_name)(const mo_gpu_driver *driver, int code);
    /* Fills in name, target, multiprocessors, warp size, memory, and whether it can map memory. */
    int (*describe)(mo_gpu_device *device);
    int (*open_context)(mo_gpu_device *device);
    void (*close_context)(mo_gpu_device *device);
    /* Makes the device current; *out_saved is what leave_context needs to undo it. */
    int (*enter_context)(mo_gpu_device *device, void **out_saved);
    void (*leave_context)(mo_gpu_device *device, void *saved);
    int (*copy)(mo_gpu_device *device, void *to, const void *from, size_t bytes,
                mo_gpu_stream stream);
    /* Drivers below this version take the address of an imported file descriptor, not its number;
     * 0: none does. */
    int import_by_address;
    int unknown_ends; /* code 999 is said of work that has failed, not of calls that are refused */
    /* Whose memory is at an address: a device's number, or one of MO_GPU_EVERYWHERE and so on. */
    int (*locate)(const mo_gpu_device *device, const void *pointer, int32_t *out_owner);
    /* After a failed call: the runtime must not report it again to others on this thread. */
    void (*clear_error)(const mo_gpu_driver *driver);
    /* How well an image fits the device: 0 not at all, the highest is tried first. */
    uint32_t (*rate_image)(const mo_gpu_device *device, const char *target);
    /* The run-time compiler's option that names the device, into text[size]. */
    void (*target_option)(const mo_gpu_device *device, char *text, size_t size);
} mo_gpu_vendor;

/* Memory of no device. */
enum {
    MO_GPU_EVERYWHERE = -1, /* page-locked or managed; or the driver cannot tell */
    MO_GPU_NOWHERE = -2     /* not the driver's */
};

/* A driver library. Written under the load lock, read by everyone once `loaded`. */
struct mo_gpu_driver {
    const mo_gpu_vendor *vendor;
    void *library; /* of dlopen */
    mo_gpu_calls calls;
    int loaded;
    uint32_t process; /* mo_process_forks() when it was loaded */
    int version;
    uint32_t missing_groups; /* bits 1 << mo_gpu_need of missing groups */
    int refused;             /* not loaded, and not tried again */
    int no_device;           /* loaded: it said so when it started */
    memopt_status status;    /* why it is not loaded */
    int32_t code;            /* and the driver's own code of that, or 0 */
    char file[MO_LIBRARY_FILE];
    char tried[MO_LIBRARY_TEXT];
    char problem[MO_LIBRARY_TEXT];
    char missing[MO_LIBRARY_TEXT];
    atomic_uint_fast64_t handles; /* of memory, of all its devices; live ones */
    pthread_rwlock_t mapping;     /* see peer.c */
    mo_gpu_device *open;          /* open devices; guarded by mapping */
    atomic_int strangers;         /* some could not use each other's memory: copies are checked */
};

enum { MO_GPU_KERNELS = 256, MO_GPU_SEEN = 1024, MO_GPU_SHARERS = 64 };

/* A range that was found to be reachable. */
typedef struct mo_gpu_seen {
    uintptr_t start;
    uint64_t bytes;
} mo_gpu_seen;

typedef struct mo_gpu_kernel {
    const mo_kernel *kernel;
    mo_gpu_function function;
    mo_gpu_module module; /* its own; NULL: it is in mo_gpu_device.image */
} mo_gpu_kernel;

/* Why there is no such kernel for a device, until it is opened again. */
enum { MO_GPU_VERDICT_BYTES = 1024, MO_GPU_CODE_BYTES = 96 };
typedef struct mo_gpu_verdict {
    const char *kernel;
    memopt_status status; /* OK: nothing is known */
    int32_t code;
    char message[MO_GPU_VERDICT_BYTES];
    char code_name[MO_GPU_CODE_BYTES];
} mo_gpu_verdict;

struct mo_gpu_device {
    memopt_device base;
    mo_gpu_driver *driver;
    int32_t index;
    int32_t handle; /* the driver's own number of the device */
    mo_gpu_context context;
    char name[64];
    char target[MO_GPU_TARGET_BYTES];                /* "sm_90", "gfx90a": without features */
    char isa[MO_GPU_TARGET_BYTES];                   /* as the driver says it, with features */
    uint32_t multiprocessors, warp_size, capability; /* capability: 90 is sm_90 */
    uint64_t total_memory, granularity;
    int can_map;      /* virtual memory is used */
    char no_map[160]; /* why it is not, where the driver has it; or "" */
    int handle_files; /* a handle of memory costs a file descriptor */
    int pageable;     /* kernels can use any memory of the process */
    atomic_int rdma;  /* memory is created for remote access too */
    atomic_int files; /* ... and to be exported as file descriptors */
    atomic_int lost;  /* the driver's code that ended the device; 0 while it lives */

    /* Guarded by driver->mapping: who has access to what the device maps, itself first. */
    mo_gpu_device *next_open;
    mo_gpu_access access[MO_GPU_SHARERS];
    uint32_t access_count;

    pthread_mutex_t lock;  /* guards what follows; held across no driver call */
    pthread_cond_t loaded; /* `loading` became 0 */
    mo_ranges plain;       /* allocations; value: the driver's pointer */
    mo_ranges reservations;
    mo_ranges mappings;
    mo_gpu_seen seen[MO_GPU_SEEN]; /* foreign memory, by a hash of its start (pointer.c) */
    int loading;                   /* a thread loads kernels; these are its own: */
    mo_gpu_module image;           /* with all kernels; NULL: each has a module */
    uint64_t images_unfit;         /* bits 1 << number */
    mo_gpu_verdict verdict;
    uint32_t kernel_count; /* guarded by the lock again */
    mo_gpu_kernel kernels[MO_GPU_KERNELS];
};

typedef struct mo_gpu_event_object {
    memopt_event base;
    mo_gpu_event event;
} mo_gpu_event_object;

static inline mo_gpu_device *mo_gpu(memopt_device *device)
{
    return (mo_gpu_device *)(void *)device;
}

static inline const mo_gpu_calls *mo_gpu_call(const mo_gpu_device *gpu)
{
    return &gpu->driver->calls;
}

/* True if every entry point of the group is there. */
static inline int mo_gpu_has(const mo_gpu_driver *driver, mo_gpu_need group)
{
    return (driver->missing_groups & (1u << group)) == 0;
}

/* --- driver.c --- */
extern mo_gpu_driver mo_cuda_driver, mo_hip_driver;

/* Loads the library if it is not loaded: the one that the program has loaded, else one that the
 * loader finds. Failures are remembered, but for those that may pass. */
memopt_status mo_gpu_load(mo_gpu_driver *driver);
memopt_status mo_gpu_count(mo_gpu_driver *driver, int32_t *out_count);
/* Loads if needed and fills in the report; never fails. */
void mo_gpu_report(mo_gpu_driver *driver, memopt_backend_info *out_info);
/* For vendors: looks up `count` entries with `find`, into the struct at `calls`. */
typedef void *(*mo_gpu_find)(const mo_gpu_driver *driver, const mo_gpu_entry *entry);
void mo_gpu_resolve(mo_gpu_driver *driver, const mo_gpu_entry *entries, size_t count, void *calls,
                    mo_gpu_find find);
void *mo_gpu_symbol(const mo_gpu_driver *driver, const char *symbol);
/* "no AMD device", and why as far as the system tells: into text[MO_LIBRARY_TEXT]. */
void mo_gpu_why_no_device(const mo_gpu_vendor *vendor, char *text);

/* --- device.c --- */
memopt_status mo_gpu_open(mo_gpu_driver *driver, int32_t index,
                          const memopt_device_options *options, memopt_device **out_device);

/* --- error.c --- */
/* Records the failed driver call. `memory` is what running out of memory means there. */
memopt_status mo_gpu_fail(mo_gpu_device *gpu, int code, memopt_status memory,
                          const char *operation);
/* The same where code may be success; NOT_READY writes no error. */
memopt_status mo_gpu_result(mo_gpu_device *gpu, int code, memopt_status memory,
                            const char *operation);
/* Does the code mean that the context is dead? */
int mo_gpu_code_is_fatal(int code);
/* The same of a call for an open device. */
int mo_gpu_ends(const mo_gpu_device *gpu, int code);
memopt_status mo_gpu_status_of(int code, memopt_status memory);
/* Records that the context is dead, the first time. */
void mo_gpu_lose(mo_gpu_device *gpu, int code);

/* --- scope.c --- */
enum {
    /* For calls that a driver considers unsafe during a capture (allocating, querying an event):
     * they belong to no graph and must not break the program's capture. */
    MO_GPU_RELAXED = 1,
    MO_GPU_ENDS = 2 /* ends something: succeeds if the device is lost */
};

/* The driver calls of one operation:
 *
 *     if (mo_gpu_enter(&in, device, "stream_sync", 0))
 *         in.code = in.call->stream_sync(stream);
 *     return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
 *
 * In between, the operation sets `code`, or `status` where it has recorded an error itself. */
typedef struct mo_gpu_scope {
    mo_gpu_device *gpu;
    const mo_gpu_calls *call;
    const char *operation;
    int code;
    memopt_status status;
    int entered, flags, mode;
    void *saved;
} mo_gpu_scope;

/* 1 with the device's context current, or 0: then there is nothing to do but to leave. */
int mo_gpu_enter(mo_gpu_scope *scope, memopt_device *device, const char *operation, int flags);
/* Undoes that, and returns the operation's status. `memory` is what running out of memory means
 * there; NOT_READY writes no error. */
memopt_status mo_gpu_leave(mo_gpu_scope *scope, memopt_status memory);
/* The thread's capture mode is relaxed; what is unsafe may be called only then. Returns the
 * driver's code, and what mo_gpu_restrict needs to undo it. */
int mo_gpu_relax(const mo_gpu_device *gpu, int *out_earlier);
void mo_gpu_restrict(const mo_gpu_device *gpu, int earlier);

/* --- vm_check.c --- */
/* Pre: entered. Decides whether the device's virtual memory is used, and the granularity. */
void mo_gpu_check_vm(mo_gpu_scope *in);

/* --- device.c, memory.c, share.c, stream.c, launch.c: the operations of the table --- */
#define MO_GPU_OP(name) MO_DEVICE_OP(mo_gpu_##name, name);
MO_DEVICE_OPS(MO_GPU_OP)
#undef MO_GPU_OP

/* --- memory.c --- */
mo_gpu_allocation mo_gpu_allocation_of(const mo_gpu_device *gpu);
/* Creates memory; what the driver refuses to make it for is not asked for again. Its status. */
int mo_gpu_create(mo_gpu_device *gpu, uint64_t size, uint64_t *out_handle);
/* Counts one more handle of memory; UNSUPPORTED where descriptors would run out. */
memopt_status mo_gpu_count_handle(mo_gpu_device *gpu);
/* How many handles the process can have where each costs a file descriptor. */
uint64_t mo_gpu_most_handles(uint64_t *out_limit);

/* --- peer.c --- */
/* An opened device takes part from here on. Always succeeds. */
void mo_gpu_join(mo_gpu_device *gpu);
void mo_gpu_part(mo_gpu_device *gpu);
/* UNSUPPORTED where an end of the copy is mapped memory of a device that does not let this one use
 * it: the driver need not notice. */
memopt_status mo_gpu_check_copy(mo_gpu_device *gpu, const void *destination, const void *source,
                                uint64_t bytes);

/* --- pointer.c --- */
memopt_status mo_gpu_reachable(memopt_device *device, const char *subject, uint64_t index,
                               const void *pointer, uint64_t bytes);
/* Memory was freed: forgets which ranges were reachable. */
void mo_gpu_forget_seen(mo_gpu_device *gpu);

/* --- launch.c --- */
void mo_gpu_unload(mo_gpu_device *gpu);

/* --- module.c --- */
/* Loads a kernel: from the best image, which has all of them (*out_all is 1), or
 * compiled on this machine, now or earlier. Without it, later calls return the same failure at
 * once. Pre: entered, and `loading`: no other thread is in here for the device. */
memopt_status mo_gpu_module_load(mo_gpu_device *gpu, const mo_kernel *kernel,
                                 mo_gpu_module *out_module, int *out_all);

/* --- image_file.c --- */
enum { MO_GPU_PATH_BYTES = 4096 };
/* The folder of this library's file, into out_path[MO_GPU_PATH_BYTES]. */
void mo_gpu_library_folder(char *out_path);
/* Where the file of an image is looked for, into out_path[MO_GPU_PATH_BYTES]. */
void mo_gpu_image_path(const mo_image *image, char *out_path);
/* Reads that file; *out_data is ended by mo_free. NOT_FOUND, without a message, where there is
 * none; CORRUPT where it is another file than the one that the library was built with. */
memopt_status mo_gpu_image_read(const mo_image *image, void **out_data);

/* --- compiler.c --- */
typedef struct mo_gpu_compiler mo_gpu_compiler;

/* How the kernels of one device are compiled, each by itself. */
typedef struct mo_gpu_recipe {
    const mo_gpu_compiler *compiler; /* NULL: the driver compiles, the text is PTX */
    const char *text;                /* a zero byte follows it */
    char *part;                      /* the text where it was made for one kernel, else NULL */
    uint64_t bytes;
    double seconds;    /* that the driver takes for it */
    int quick;         /* they are so few that nothing is kept or said */
    int intermediate;  /* PTX: the compiler knows older targets only, the driver does the rest */
    const char *types; /* mo_kernel's */
    char target[2 * MO_GPU_TARGET_BYTES]; /* the option that names the target */
} mo_gpu_recipe;

/* Finds a run-time compiler that knows the device. UNSUPPORTED and why where there is none. */
memopt_status mo_gpu_find_recipe(const mo_gpu_device *gpu, mo_gpu_recipe *out_recipe);
/* The file of the run-time compiler, or "" and why there is none (MO_LIBRARY_TEXT). */
void mo_gpu_compiler_report(const mo_gpu_driver *driver, char *file, char *problem);

/* --- compile.c --- */
enum { MO_GPU_IDENTITY_BYTES = 1024 };

/* All but the text and the kernel that the outcome depends on: options, the compiler's file and
 * version. */
void mo_gpu_recipe_identity(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, char *identity);
/* "FILE (version 13.0)", into text[size]. */
void mo_gpu_recipe_name(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, char *text,
                        size_t size);
/* The driver compiles the part of an image in PTX that one kernel needs: all of them take it half a
 * minute. The recipe's part is ended by mo_free. */
memopt_status mo_gpu_part_recipe(const char *text, uint64_t bytes, const char *kernel,
                                 mo_gpu_recipe *out_recipe);
/* Makes what the driver loads for one kernel. UNSUPPORTED where the compiler refuses; *out_binary
 * is ended by mo_free, and a zero byte that is not counted follows it. */
memopt_status mo_gpu_compile(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe,
                             const char *kernel, void **out_binary, uint64_t *out_bytes);

/* --- cache.c --- */
/* Compiled code on disk, by a key that names all it depends on. read: 1 if found and intact;
 * removes a damaged file. write is atomic and may fail without harm. drop: removes an unusable
 * file. */
enum { MO_GPU_KEY_BYTES = 192 };
void mo_gpu_cache_key(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, const char *kernel,
                      char *key);
int mo_gpu_cache_read(const char *key, void **out_binary, uint64_t *out_bytes);
void mo_gpu_cache_write(const char *key, const void *binary, uint64_t bytes);
void mo_gpu_cache_drop(const char *key);
/* Waits until no other process or device makes what belongs to the key. -1 where that cannot be
 * known; end it with unlock, either way. */
int mo_gpu_cache_lock(const char *key);
void mo_gpu_cache_unlock(int lock);
/* The folder, or "": into text[MO_GPU_PATH_BYTES]. */
void mo_gpu_cache_place(char *text);

#endif
