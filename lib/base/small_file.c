#include "base/small_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
