/* Branches of every kind whose outcomes do not drift: argv[1] rounds. Without a C library (gcc -nostdlib -static), whose
   start depends on the processor: every run takes the same edges. For x86-64 and AArch64. */

#ifdef __aarch64__
enum { WRITE = 64, EXIT = 93 };
#else
enum { WRITE = 1, EXIT = 60 };
#endif

static unsigned long state = 88172645463325252UL;

static unsigned long random_word(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static long __attribute__((noinline)) fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static long __attribute__((noinline)) add(long a) { return a + 1; }
static long __attribute__((noinline)) triple(long a) { return a * 3; }
static long __attribute__((noinline)) flip(long a) { return a ^ 5; }
static long (*volatile table[3])(long) = {add, triple, flip};

static long __attribute__((noinline)) choose(long sum)
{
    for (int i = 0; i < 300; i++) {
        unsigned long k = random_word() % 100;
        if (k < 30) sum += k;
        else if (k < 77) sum ^= k;
        sum = table[k % 3](sum);
        switch (k % 7) {
        case 0: sum += 3; break;
        case 1: sum ^= 9; break;
        case 2: sum -= 4; break;
        case 3: sum *= 5; break;
        case 4: sum += add(sum); break;
        default: sum++;
        }
    }
    return sum;
}

static long __attribute__((noinline)) collatz(unsigned long n)
{
    long steps = 0;
    while (n != 1) {
        n = n & 1 ? 3 * n + 1 : n / 2;
        steps++;
    }
    return steps;
}

static long system_call(long number, long first, long second, long third)
{
#ifdef __aarch64__
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x1 __asm__("x1") = second,
                     x2 __asm__("x2") = third;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#else
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
#endif
}

static void print(unsigned long value)
{
    char text[24];
    int at = sizeof text;
    text[--at] = '\n';
    do text[--at] = '0' + value % 10;
    while (value /= 10);
    system_call(WRITE, 1, (long)(text + at), (long)sizeof text - at);
}

__attribute__((used)) static void start(long *stack)
{
    long rounds = 0, sum = 0;
    for (char *digit = (char *)stack[2]; *digit; digit++) rounds = rounds * 10 + *digit - '0';
    for (long r = 0; r < rounds; r++) {
        sum += fib(14);
        sum = choose(sum);
        for (int i = 0; i < 10; i++) sum += collatz(random_word() % 1000 + 1);
    }
    print(sum);
    system_call(EXIT, 0, 0, 0);
}

#ifdef __aarch64__
__asm__(".globl _start\n_start: mov x0, sp\n b start\n");
#else
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
#endif
