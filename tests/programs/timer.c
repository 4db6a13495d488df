/* A handler called 1,000 times a second. */
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile int calls;
static void handler(int number) { calls++; }

int main(void)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval each = {{0, 1000}, {0, 1000}};
    volatile long sum = 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
    for (long i = 0; i < 60000000; i++)
        if (i & 3) sum += i;
    printf("%ld %d\n", sum, calls > 20);
    return 0;
}
