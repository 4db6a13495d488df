// A program that knows its own call stack: `shadow[0:depth]` are the functions that were entered and not left, by their
// place in the list below. It goes through everything that makes unwinding hard, again and again.
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

extern "C" {
enum { MAIN, RECURSE, EVEN, ODD, COMPARE, SORT, TAIL, LAST, ROOM, BIG, MANY, HANDLER, SIGNALS, THROWS, CATCHES, JUMPS, LANDS, LEAF };
volatile int shadow[4096];
volatile int depth;
volatile long sink;
int on_other_stack;

#define NOINLINE __attribute__((noinline))
#define ENTER(id) (shadow[depth] = (id), depth = depth + 1)
#define LEAVE() (depth = depth - 1)

NOINLINE long leaf(long x) { ENTER(LEAF); sink = sink + x; LEAVE(); return sink; }
NOINLINE long recurse(int n) { ENTER(RECURSE); long r = n ? recurse(n - 1) + n : leaf(n); LEAVE(); return r; }
NOINLINE long odd(int n);
NOINLINE long even(int n) { ENTER(EVEN); long r = n ? odd(n - 1) + 1 : leaf(1); LEAVE(); return r; }
NOINLINE long odd(int n) { ENTER(ODD); long r = n ? even(n - 1) + 3 : leaf(2); LEAVE(); return r; }
NOINLINE int compare(const void *a, const void *b) { ENTER(COMPARE); int r = *(const int *)a - *(const int *)b; leaf(r); LEAVE(); return r; }
NOINLINE long sort(int n)
{
    ENTER(SORT);
    int numbers[64];
    for (int i = 0; i < n; i++) numbers[i] = i * 37 % 61;
    qsort(numbers, n, sizeof *numbers, compare);
    LEAVE();
    return numbers[n / 2];
}
NOINLINE long last(long a, long b) { ENTER(LAST); long r = leaf(a) + b; LEAVE(); return r; }
NOINLINE long tail(long a) { ENTER(TAIL); long b = leaf(a); LEAVE(); return last(b, a); }
NOINLINE long room(int n) { ENTER(ROOM); volatile char *p = (volatile char *)alloca(n); p[n - 1] = 1; long r = leaf(p[n - 1]); LEAVE(); return r; }
NOINLINE long big(int n) { ENTER(BIG); volatile char p[200000]; p[n] = 1; long r = leaf(p[n]); LEAVE(); return r; }
NOINLINE long many(int n, ...)
{
    ENTER(MANY);
    va_list list;
    va_start(list, n);
    long r = 0;
    while (n--) r += leaf(va_arg(list, long));
    va_end(list);
    LEAVE();
    return r;
}
NOINLINE void handler(int) { ENTER(HANDLER); leaf(recurse(3)); LEAVE(); }
NOINLINE long signals(int number) { ENTER(SIGNALS); raise(number); LEAVE(); return 1; }
NOINLINE long throws(int n) { ENTER(THROWS); if (n == 0) throw 1; long r = throws(n - 1) + 1; LEAVE(); return r; }
NOINLINE long catches(int n)
{
    ENTER(CATCHES);
    int mine = depth;
    long r = 0;
    try { r = throws(n); } catch (int x) { depth = mine; r = leaf(x); }
    LEAVE();
    return r;
}
static jmp_buf place;
NOINLINE void jumps(int n) { ENTER(JUMPS); if (n == 0) longjmp(place, 1); jumps(n - 1); LEAVE(); }
NOINLINE long lands(int n)
{
    ENTER(LANDS);
    volatile int mine = depth;
    if (setjmp(place) == 0) jumps(n);
    depth = mine;
    long r = leaf(n);
    LEAVE();
    return r;
}

int main(int count, char **words)
{
    ENTER(MAIN);
    int rounds = count > 1 ? atoi(words[1]) : 1, deep = count > 2 ? atoi(words[2]) : 30;
    char *other = (char *)malloc(1 << 16);
    stack_t alternate;
    memset(&alternate, 0, sizeof alternate);
    alternate.ss_sp = other;
    alternate.ss_size = 1 << 16;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, 0);
    if (sigaltstack(&alternate, 0) == 0) action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, 0);
    long total = 0;
    while (rounds--) {
        total += recurse(deep);
        if (count > 3) continue; // no more than that
        total += even(9) + sort(20) + tail(rounds) + room(rounds % 500 + 16) + big(7) + many(3, 1L, 2L, 3L);
        total += signals(SIGUSR1) + signals(SIGUSR2) + catches(4) + lands(5);
    }
    printf("%ld\n", total & 1);
    LEAVE();
    return 0;
}
}
