/* Counts the signals that reach a program. Words say how the program treats signals:
 *   urg, winch, chld  it has a handler       block  it blocks all that it can, and takes what is pending at the end
 *   cont N            it blocks SIGCONT, sends it to itself N times, and takes it each time after a while
 * Without N it computes until SIGTERM. It prints how many handlers ran, and how many signals it took. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int over, handled;
static volatile long sum;

static void count(int number) { handled++; }
static void end(int number) { over = 1; }

static void compute(void)
{
    for (int i = 0; i < 4000000; i++)
        if (i & 3) sum += i;
}

static int takes(const sigset_t *set)
{
    struct timespec none = {0, 0};
    int taken = 0;
    while (sigtimedwait(set, NULL, &none) > 0) taken++;
    return taken;
}

int main(int words, char **word)
{
    struct sigaction counts = {.sa_handler = count, .sa_flags = SA_RESTART}, ends = {.sa_handler = end};
    int rounds = 0, taken = 0;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaction(SIGTERM, &ends, NULL);
    for (int i = 1; i < words; i++) {
        if (!strcmp(word[i], "urg")) sigaction(SIGURG, &counts, NULL);
        else if (!strcmp(word[i], "winch")) sigaction(SIGWINCH, &counts, NULL);
        else if (!strcmp(word[i], "chld")) sigaction(SIGCHLD, &counts, NULL);
        else if (!strcmp(word[i], "block")) sigfillset(&blocked), sigdelset(&blocked, SIGTERM);
        else if (!strcmp(word[i], "cont")) sigaddset(&blocked, SIGCONT);
        else rounds = atoi(word[i]);
    }
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    for (int i = 0; rounds ? i < rounds : !over; i++) {
        if (rounds) raise(SIGCONT);
        compute();
        if (rounds) taken += takes(&blocked);
    }
    taken += takes(&blocked);
    printf("%d handled, %d taken\n", handled, taken);
    return 0;
}
