/* Faults all the time. The handler jumps away, so the code after a fault never runs. Prints how often that code ran. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static sigjmp_buf before;
static volatile long never_ran, sum;

static void on_fault(int number) { (void)number, siglongjmp(before, 1); }

__attribute__((noinline)) void never(void)
{
    for (long n = 0; n < 100000; n++) never_ran += n | 1;
}

__attribute__((noinline)) void work(void)
{
    for (long n = 0; n < 300; n++) sum += n;
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    char *page = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < 3; n++) page[4096 * n] = (char)0xC3;
    mprotect(page, 4096, PROT_READ);
    mprotect(page + 4096, 4096, PROT_NONE);
    for (volatile long round = atol(words[count - 1]); round; round--) {
        if (!sigsetjmp(before, 0)) {
            work();
            if (round % 3 == 0) *(volatile char *)page = 1;
            else if (round % 3 == 1) sum += *(volatile char *)(page + 4096);
            else ((void (*)(void))(page + 8192))();
            never();
        }
    }
    printf("%ld\n", never_ran);
}
