/* Calls of the next instruction in three encodings: 5 bytes, 6 bytes with a prefix, and indirect. main calls outer, which
 * calls inner; nothing else is called. */
#include <stdlib.h>
static volatile long sink;
__attribute__((noinline)) static long inner(long n)
{
    long at, sum = 0;
    for (long i = 0; i < 2; i++) {
        __asm__ volatile("call 1f\n1: pop %0" : "=r"(at)::"memory");
        sum += at;
        __asm__ volatile(".byte 0x48, 0xe8, 0, 0, 0, 0\npop %0" : "=r"(at)::"memory");
        sum ^= at;
        __asm__ volatile("lea 1f(%%rip), %0\ncall *%0\n1: pop %0" : "=&r"(at)::"memory");
        sum += at * n;
    }
    return sum;
}
__attribute__((noinline)) static long outer(long n) { return inner(n) + inner(n + 1) + 1; }
int main(int argc, char **argv)
{
    for (long i = argc > 1 ? atol(argv[1]) : 1; i > 0; i--) sink += outer(i);
    return 0;
}
