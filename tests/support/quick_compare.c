/* cmocka compares memory byte by byte, which took most of the time of tests with large blocks: the
 * linker puts this before it (--wrap), so that only memory that differs is looked at so. */
#include <stddef.h>
#include <string.h>

void __real__assert_memory_equal(const void *a, const void *b, size_t size, const char *file,
                                 int line);
void __wrap__assert_memory_equal(const void *a, const void *b, size_t size, const char *file,
                                 int line);

void __wrap__assert_memory_equal(const void *a, const void *b, size_t size, const char *file,
                                 int line)
{
    if (memcmp(a, b, size) != 0)
        __real__assert_memory_equal(a, b, size, file, line);
}
