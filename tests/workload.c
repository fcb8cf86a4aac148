/* What the tests' containers run: small, static, and able to behave well or badly on demand.
 *
 *   talk        a line on each stream, then a tick every 20 ms, until SIGTERM (exit 0)
 *   stubborn    says "ready", ignores SIGTERM
 *   quiet       says nothing, until SIGTERM (exit 0)
 *   once TEXT   writes TEXT without a newline and ends with 3
 *   burst N     writes N lines and ends with 0
 *   report      writes what the kernel says about this process and what it may do, ends with 0
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static void leave(int sign) { (void)sign; _exit(0); }

static void copy(const char *path) {
    char text[4096];
    FILE *file = fopen(path, "r");
    if (!file) { printf("%s: errno %d\n", path, errno); return; }
    while (fgets(text, sizeof text, file)) fputs(text, stdout);
    fclose(file);
}

static void try_write(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT, 0666);
    printf("write %s: %s\n", path, file < 0 ? strerror(errno) : "ok");
    if (file >= 0) close(file);
}

static void report(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/engine/engine.sock"};
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    copy("/proc/self/status");
    copy("/proc/net/dev");
    copy("/proc/self/limits");
    copy("/proc/self/mounts");
    printf("uid %d gid %d\n", getuid(), getgid());
    try_write("/file");
    try_write("/tmp/file");
    try_write("/models/file");
    try_write("/run/engine/file");
    printf("listen: %s\n", bind(sock, (void *)&address, sizeof address) ? strerror(errno) : "ok");
    for (char **name = environ; *name; name++) printf("env %s\n", *name);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "quiet";
    struct timespec tick = {0, 20000000};
    signal(SIGTERM, leave);
    if (!strcmp(what, "once")) { fputs(words[2], stdout); fflush(stdout); return 3; }
    if (!strcmp(what, "burst")) { for (long i = 0; i < atol(words[2]); i++) printf("line %ld\n", i); return 0; }
    if (!strcmp(what, "report")) { report(); return 0; }
    if (!strcmp(what, "stubborn")) { signal(SIGTERM, SIG_IGN); puts("ready"); fflush(stdout); for (;;) pause(); }
    if (!strcmp(what, "talk")) {
        setvbuf(stdout, NULL, _IOLBF, 0);
        puts("out 1");
        fputs("err 1\n", stderr);
        for (long i = 0;; i++) { nanosleep(&tick, NULL); printf("tick %ld\n", i); }
    }
    for (;;) pause();
}
