/* Threads or processes that end soon, four at a time: brief threads|processes HOW_MANY ROUNDS [wait]. Prints the CPU
 * time of the program and its children in us; with "wait" the program first waits for a byte of standard input. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE = 4 };

static long rounds;

static void *work(void *unused)
{
    volatile unsigned long state = 88172645463325252UL;
    for (long r = 0; r < rounds; r++) state = state * 6364136223846793005UL + (state >> 33);
    return unused;
}

static long used(int who)
{
    struct rusage usage;
    getrusage(who, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

int main(int count, char **words)
{
    int processes = words[1][0] == 'p';
    long many = atol(words[2]);
    pthread_t threads[AT_ONCE];
    rounds = atol(words[3]);
    if (count > 4 && getchar() == EOF) return 1;
    long before = count > 4 ? used(RUSAGE_SELF) : 0;
    for (long begun = 0; begun < many; begun += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            if (!processes) pthread_create(threads + i, NULL, work, NULL);
            else if (!fork()) {
                work(NULL);
                _exit(0);
            }
        }
        for (int i = 0; i < AT_ONCE; i++) {
            if (processes) wait(NULL);
            else pthread_join(threads[i], NULL);
        }
    }
    printf("%ld\n", used(RUSAGE_SELF) + used(RUSAGE_CHILDREN) - before);
    return 0;
}
