/* Functions that do other things for other callers: contexts matter. A static function, recursion, tail calls, calls
   through a table, calls of the C library that call back. */
#include <stdio.h>
#include <stdlib.h>

#ifndef APART
#define APART __attribute__((noinline))
#endif

APART static unsigned leaf(unsigned x, unsigned n)
{
    unsigned t = 0;
    for (unsigned i = 0; i < n; i++) {
        if (x & (1u << (i & 31))) t += i * x;
        else t ^= x >> 1;
    }
    return t;
}
__attribute__((always_inline)) static inline unsigned twice(unsigned x)
{ return x % 3 == 0 ? leaf(x, 4) + 1 : leaf(x + 1, 2) * 2; }
APART unsigned hot(unsigned x) { return leaf(x, 40) + twice(x); }
APART unsigned cold(unsigned x) { return leaf(x, 1) + twice(x * 5); }
APART unsigned deep(unsigned d) { return d ? deep(d - 1) * 3 + leaf(d, 3) : 1; }
APART unsigned last(unsigned d) { return d & 1 ? hot(d) : cold(d); }
unsigned (*table[3])(unsigned) = {hot, cold, last};
static int order(const void *a, const void *b) { return (int)twice(*(const unsigned *)a) - (int)cold(*(unsigned *)b); }

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1000, total = 0, some[8];
    for (unsigned i = 0; i < rounds; i++) {
        total += hot(i);
        if (i % 10 == 0) total += cold(i) + table[i / 10 % 3](i);
        if (i % 50 == 0) total += deep(5);
        if (i % 7 == 0) total += last(i);
        if (i % 500 == 0) {
            for (unsigned k = 0; k < 8; k++) some[k] = (i + k) * 2654435761u;
            qsort(some, 8, sizeof *some, order);
        }
    }
    printf("%u %u\n", total, some[3]);
}
