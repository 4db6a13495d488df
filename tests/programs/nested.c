#include <stdio.h>
#include <stdlib.h>
static volatile int sink;
__attribute__((noinline)) static int each(int (*f)(int), int n)
{
    int s = 0;
    for (int i = 0; i < n; ++i) s += f(i);
    return s;
}
static inline int twice(int k, int n)
{
    int inner(int x)
    {
        int deeper(int y) { return y * k + sink; }
        return each(deeper, x & 7) ^ k;
    }
    return each(inner, n) + each(inner, n / 2);
}
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int argc, char **argv)
{
    int v[50];
    for (int i = 0; i < 50; ++i) v[i] = (i * 31) % 47 * argc;
    qsort(v, 50, sizeof *v, compare);
    struct S { int a; } s = {twice(argc, 20) + twice(argc + 1, 30)};
    printf("%d %d\n", s.a, v[2]);
    return 0;
}
