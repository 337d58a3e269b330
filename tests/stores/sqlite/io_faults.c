/* Preloaded into a process: lets the n-th write or sync of a state file fail.

   `io_faults_arm(n, error, lasting)` begins to count: the n-th call that writes, truncates or syncs a file whose path
   has "/state.db" in it fails with `error`, and with `lasting` every later one, as on a full disk. n = 0 disarms.
   `io_faults_seen()` is the number of such calls since then. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long at, seen;
static int error_number, is_lasting;

void io_faults_arm(long n, int number, int lasting) {
    pthread_mutex_lock(&lock);
    at = n;
    seen = 0;
    error_number = number;
    is_lasting = lasting;
    pthread_mutex_unlock(&lock);
}

long io_faults_seen(void) { return seen; }

static int fails(int descriptor) {
    char link[64], path[4096];
    if (at == 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    if (strstr(path, "/state.db") == NULL)
        return 0;
    pthread_mutex_lock(&lock);
    long number = ++seen;
    int failing = at != 0 && (number == at || (is_lasting && number > at));
    int chosen = error_number;
    pthread_mutex_unlock(&lock);
    if (failing)
        errno = chosen;
    return failing;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) { return fails(fd) ? -1 : NEXT(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return fails(fd) ? -1 : NEXT(pwrite)(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return fails(fd) ? -1 : NEXT(pwrite64)(fd, data, size, offset); }
int ftruncate(int fd, off_t size) { return fails(fd) ? -1 : NEXT(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fails(fd) ? -1 : NEXT(ftruncate64)(fd, size); }
int fsync(int fd) { return fails(fd) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return fails(fd) ? -1 : NEXT(fdatasync)(fd); }
