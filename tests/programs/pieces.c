// Recursion that needs several pieces of a split stack (-fsplit-stack). -DMARKED: of an ordinary stack, with the mark in
// the thread control block that programs with split stacks have.
#include <stdio.h>
#include <stdlib.h>

volatile long sink;

__attribute__((noinline)) long down(int n)
{
    volatile char room[3000];
    for (int i = 0; i < 40; i++) room[i * 7] = sink += i & n;
    return n ? down(n - 1) + room[7] : room[0];
}

int main(int count, char **words)
{
    long total = 0;
#ifdef MARKED
    __asm__ volatile("movq $1, %%fs:0x70" ::: "memory");
#endif
    for (int rounds = count > 1 ? atoi(words[1]) : 1; rounds; rounds--) total += down(60);
    printf("%ld\n", total & 1);
    return 0;
}
