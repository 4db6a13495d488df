/* Its own SIGTRAPs, handled, by a timer, ignored, and a child that stops itself. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int calls;
static volatile long sum;
static void handler(int number) { calls++; }

static void compute(int steps)
{
    for (int i = 0; i < steps; i++)
        if (i & 3) sum += i;
}

int main(void)
{
    struct sigaction action = {.sa_handler = handler}, now;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGTRAP};
    struct itimerspec each = {{0, 2000000}, {0, 2000000}}, never = {{0, 0}, {0, 0}};
    timer_t timer;
    int status;
    sigaction(SIGTRAP, &action, NULL);
    for (int k = 0; k < 100; k++) {
        compute(200000);
        raise(SIGTRAP);
        __asm__ volatile("int3");
    }
    printf("%ld %d\n", sum, calls);
    calls = 0;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &each, NULL);
    compute(40000000);
    printf("%d\n", calls > 5);
    signal(SIGTRAP, SIG_IGN);
    compute(20000000);
    timer_settime(timer, 0, &never, NULL);
    sigaction(SIGTRAP, NULL, &now);
    printf("%d\n", now.sa_handler == SIG_IGN);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        raise(SIGSTOP);
        _exit(5);
    }
    waitpid(child, &status, WUNTRACED);
    printf("stopped %d\n", WIFSTOPPED(status));
    kill(child, SIGCONT);
    waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
