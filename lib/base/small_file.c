#include "base/small_file.h"

#include "base/checked.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 30 };

int mo_read_text(const char *path, char *text, size_t size)
{
    size_t length = 0;
    ssize_t got = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    text[0] = '\0';
    if (file < 0)
        return errno;
    do {
        got = read(file, text + length, size - 1 - length);
        if (got > 0)
            length += (size_t)got;
    } while ((got > 0 && length < size - 1) || (got < 0 && errno == EINTR));
    int error = got < 0 ? errno : 0;
    close(file);
    text[error == 0 ? length : 0] = '\0';
    if (error == 0 && length > 0 && text[length - 1] == '\n')
        text[length - 1] = '\0';
    return error;
}

int mo_read_bytes(int file, void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t count = read(file, (char *)data + done, bytes - done);
        if (count <= 0 && !(count < 0 && errno == EINTR))
            return 0;
        done += count > 0 ? (uint64_t)count : 0;
    }
    return 1;
}

/* Writing beyond the process's file size limit raises SIGXFSZ, which would end the process. It is
 * blocked and consumed, and the call returns EFBIG. */
static ssize_t write_quietly(mo_write_call *call, int file, const void *from, size_t bytes,
                             off_t offset)
{
    sigset_t too_big, before, pending;
    sigemptyset(&too_big);
    sigaddset(&too_big, SIGXFSZ);
    int was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    if (pthread_sigmask(SIG_BLOCK, &too_big, &before) != 0)
        return call(file, from, bytes, offset);
    ssize_t done = call(file, from, bytes, offset);
    int code = errno;
    if (done < 0 && code == EFBIG && !was_pending) {
        struct timespec at_once = {0, 0};
        (void)sigtimedwait(&too_big, NULL, &at_once);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return done;
}

int mo_write_at(mo_write_call *call, int file, const void *from, uint64_t bytes, uint64_t offset)
{
    const unsigned char *data = from;
    for (uint64_t done = 0; done < bytes;) {
        size_t piece = (size_t)mo_min_u64(bytes - done, PIECE);
        ssize_t count = write_quietly(call, file, data + done, piece, (off_t)(offset + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 && errno != 0 ? errno : EIO;
        done += (uint64_t)count;
    }
    return 0;
}

int mo_parse_number(const char *text, uint64_t *out_number)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0')
        return 0;
    *out_number = number;
    return 1;
}

int mo_read_number(const char *path, uint64_t *out_number)
{
    char text[64];
    int error = mo_read_text(path, text, sizeof text);
    return error != 0 || mo_parse_number(text, out_number) ? error : EINVAL;
}
