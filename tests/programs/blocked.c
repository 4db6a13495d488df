/* All signals are blocked; afterwards they still are, none came, and SIGTRAP has its default action. */
#include <signal.h>
#include <stdio.h>

static int members(const sigset_t *set)
{
    int count = 0;
    for (int i = 1; i < 65; i++) count += sigismember(set, i);
    return count;
}

int main(void)
{
    sigset_t all, blocked, pending;
    struct sigaction trap;
    volatile long sum = 0;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (long i = 0; i < 60000000; i++)
        if (i & 3) sum += i;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    sigpending(&pending);
    sigaction(SIGTRAP, NULL, &trap);
    printf("%ld %d %d %d\n", sum, members(&blocked), members(&pending), trap.sa_handler == SIG_DFL);
    return 0;
}
