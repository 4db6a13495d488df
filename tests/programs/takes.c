/* Takes many signals, as runtimes do: KIND COUNT; prints how many it took.
 *   trap      breakpoints, a handler                 barrier   stores to a read-only page, which a handler opens
 *   divide    divisions by zero, which it skips      timer     COUNT thousand steps under a timer of 0.2 ms
 * A third word: it computes for so many thousand steps first. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

static volatile long taken, sum;
static volatile char *page;

static void count(int number) { taken++; }

static void open_page(int number)
{
    taken++;
    mprotect((void *)page, 4096, PROT_READ | PROT_WRITE);
}

static void step_over(int number, siginfo_t *info, void *context)
{
    taken++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2; /* div %ecx */
}

__attribute__((noinline)) static void compute(long steps)
{
    for (long i = 0; i < steps; i++)
        if (i & 3) sum += i;
}

static void take(const char *kind)
{
    if (*kind == 't') __asm__ volatile("int3");
    if (*kind == 'b') *page = 1, mprotect((void *)page, 4096, PROT_READ);
    if (*kind == 'd') __asm__ volatile("xor %%ecx, %%ecx; xor %%edx, %%edx; div %%ecx" ::: "eax", "ecx", "edx");
}

int main(int words, char **word)
{
    struct sigaction counts = {.sa_handler = count, .sa_flags = SA_RESTART}, opens = {.sa_handler = open_page};
    struct sigaction skips = {.sa_sigaction = step_over, .sa_flags = SA_SIGINFO};
    struct itimerval often = {{0, 200}, {0, 200}};
    const char *kind = word[1];
    int timer = !strcmp(kind, "timer");
    page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGTRAP, &counts, 0);
    sigaction(SIGALRM, &counts, 0);
    sigaction(SIGSEGV, &opens, 0);
    sigaction(SIGFPE, &skips, 0);
    if (words > 3) compute(1000 * atol(word[3]));
    if (timer) setitimer(ITIMER_REAL, &often, 0);
    for (long i = atol(word[2]); i; i--) {
        compute(1000);
        if (!timer) take(kind);
    }
    printf("%ld\n", timer ? taken > 0 : taken);
    return 0;
}
