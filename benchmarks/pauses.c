/* A thread that makes steps in memory that it shares, and a watcher that looks at it from another processor: the longest time
 * without a step, and how long all pauses were.
 *
 *     pauses work PROGRAM FILE            steps until FILE says that it is enough
 *     pauses watch FILE SECONDS           prints ns: longest, all above LONG, watched
 *
 * Pauses that have nothing to do with a recorder are in both rows of a table. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct shared { volatile long steps, over, began; };
static struct shared *shared;
static unsigned char *one, *two;
enum { BIG = 4 << 20, MANY = 8000, TEXT = 1 << 20 };

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void rep(const char *name)
{
    void *to = two, *from = one;
    long count, ended = 1;
    for (; ended && !shared->over; shared->steps++) {
        if (!strcmp(name, "rep movsb, backwards")) {
            to = two + (256 << 10) - 1, from = one + (256 << 10) - 1, count = 256 << 10;
            __asm__ volatile("std; rep movsb; cld" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
        } else if (!strcmp(name, "rep movsq")) {
            to = two, from = one, count = BIG / 8;
            __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
        } else if (!strcmp(name, "rep stosb")) {
            to = two, count = BIG;
            __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(1) : "memory");
        } else if (!strcmp(name, "repne scasb")) {
            to = one, count = 260 << 10;
            __asm__ volatile("repne scasb" : "+D"(to), "+c"(count) : "a"(7) : "memory");
        } else /* without a branch between */
            __asm__ volatile(".rept %c4; mov %0, %%rdi; mov %1, %%ecx; repne scasb; incq %2; .endr"
                             :
                             : "r"(one), "i"(260 << 10), "m"(shared->steps), "a"(7), "i"(MANY)
                             : "rdi", "rcx", "memory");
    }
}

static void *sleeps(void *nothing)
{
    for (;;) pause();
    return nothing;
}

static void work(const char *name)
{
    volatile long sum = 0;
    if (strstr(name, "rep")) rep(name);
    if (strstr(name, "flag")) {
        pthread_t other; /* so that the thread may wait for it */
        pthread_create(&other, 0, sleeps, 0);
        for (; !shared->over; shared->steps++)
            for (int n = 0; n < 1000 && !shared->over; n++) {}
    }
    for (; !shared->over; shared->steps++) {
        if (strstr(name, "memset")) memset(two, (int)shared->steps, BIG);
        else if (strstr(name, "memcpy")) memcpy(two, one, BIG);
        else if (strstr(name, "strlen")) sum += (long)strlen((char *)one);
        else if (strstr(name, "pause"))
            for (int n = 0; n < 100; n++) __builtin_ia32_pause();
        else
            for (int n = 0; n < 1000; n++) sum += n & sum ? 3 : n;
    }
}

/* Starts as soon as the thread has begun. Time in which the watcher itself did not run is no pause. */
static void watch(double seconds)
{
    enum { LONG = 100000, BLIND = 20000 };
    struct sched_param priority = {1};
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
    sched_setscheduler(0, SCHED_FIFO, &priority);
    while (!shared->steps) usleep(1000);
    long begin = now(), end = begin + (long)(seconds * 1e9), steps = shared->steps, since = begin, before = begin,
         longest = 0, all = 0, blind = 0;
    while (before < end) {
        long at = now(), found = shared->steps;
        if (at - before > BLIND) blind += at - before, since += at - before;
        if (found != steps) {
            long took = at - since;
            if (took > longest) longest = took;
            if (took > LONG) all += took;
            steps = found, since = at;
        }
        before = at;
    }
    shared->over = 1;
    printf("%ld %ld %ld\n", longest, all, end - begin - blind);
}

int main(int count, char **words)
{
    int file = open(words[count > 3 && !strcmp(words[1], "work") ? 3 : 2], O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, 4096)) return 1;
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (!strcmp(words[1], "watch")) return watch(atof(words[3])), 0;
    cpu_set_t others;
    CPU_ZERO(&others);
    for (long n = 0; n < sysconf(_SC_NPROCESSORS_ONLN) - 1; n++) CPU_SET(n, &others);
    sched_setaffinity(0, sizeof others, &others);
    one = malloc(BIG), two = malloc(BIG);
    memset(one, 1, BIG), memset(two, 2, BIG);
    one[TEXT] = 0;
    work(words[2]);
}
