/* Holds back one publication of a manifest: loaded before the C library into a driver of the
 * crash laboratory (LD_PRELOAD).
 *
 * On a local disk Lance publishes a version by linkat("N.manifest#1", "N.manifest"), after it has
 * looked for conflicts (seen with strace on pylance 14.0.2). CHAOS_SIGN is a path. When SIGN.hold
 * is there, the next such link waits until SIGN.go is, and SIGN.held says that it waits. Of several
 * threads one takes the order: who removes SIGN.hold.
 *
 * The JVM publishes an entry of Spark's log by rename, after it has looked whether the entry is
 * there. With CHAOS_RENAMES set, SIGN is the path that is renamed to.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS_A_SECOND = 100, LONGEST_SECONDS = 100 };

static const char *path(char *into, size_t size, const char *sign, const char *end)
{
    snprintf(into, size, "%s.%s", sign, end);
    return into;
}

static void wait_if_ordered(const char *sign)
{
    char name[4096];
    if (unlink(path(name, sizeof name, sign, "hold")) != 0)
        return;
    close(open(path(name, sizeof name, sign, "held"), O_CREAT | O_WRONLY, 0600));
    path(name, sizeof name, sign, "go");
    const struct timespec pause = {0, 1000000000L / LOOKS_A_SECOND};
    for (int look = 0; look < LOOKS_A_SECOND * LONGEST_SECONDS && access(name, F_OK); look++)
        nanosleep(&pause, NULL);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    static int (*real)(int, const char *, int, const char *, int);
    if (!real)
        real = dlsym(RTLD_NEXT, "linkat");
    const char *sign = getenv("CHAOS_SIGN");
    if (sign && strstr(to, "/_versions/"))
        wait_if_ordered(sign);
    return real(from_folder, from, to_folder, to, flags);
}

int rename(const char *from, const char *to)
{
    static int (*real)(const char *, const char *);
    if (!real)
        real = dlsym(RTLD_NEXT, "rename");
    if (getenv("CHAOS_RENAMES"))
        wait_if_ordered(to);
    return real(from, to);
}
