/* Puts its own offsets on the wall's clock and on the clock since boot of the process that it is preloaded into.
 *
 * The file that CLOCK_OFFSETS names holds two numbers of nanoseconds, the wall's and the boot clock's; it is mapped, so
 * that a test steps the clocks of a running process by writing into it. The monotonic clock is left alone, as it is
 * when somebody sets the time, and while a host sleeps. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offsets;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSETS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) offsets = mapped;
}

static int64_t offset(clockid_t clock) {
    if (!offsets) return 0;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI) return offsets[0];
    return clock == CLOCK_BOOTTIME ? offsets[1] : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    long failed = syscall(SYS_clock_gettime, clock, out);
    int64_t more = failed ? 0 : offset(clock);
    if (more) {
        int64_t all = (int64_t)out->tv_sec * 1000000000 + out->tv_nsec + more;
        out->tv_sec = all / 1000000000;
        out->tv_nsec = all % 1000000000;
    }
    return (int)failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
