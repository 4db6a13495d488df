/* Loops whose trip counts are known, calls of every kind, and a jump table: argv[1] rounds. Without a C library
   (gcc -nostdlib -static), so that every instruction is this program's. */

#define KEEP __attribute__((noinline, noclone))

static volatile long sink;

static KEEP long fixed(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++) sum += sink;
    return sum;
}

static KEEP long nested(long outer, long inner)
{
    long sum = 0;
    for (long i = 0; i < outer; i++) {
        sum ^= i;
        for (long j = 0; j < inner; j++) sum += sink * j;
    }
    return sum;
}

static KEEP long add(long a) { return a + sink; }
static KEEP long flip(long a) { return a ^ 5 ^ sink; }
static long (*volatile table[2])(long) = {add, flip};

static KEEP long calling(long n)
{
    long sum = 0;
    do sum = table[n & 1](sum) + fixed(3);
    while (--n > 0);
    return sum;
}

static KEEP void quiet(void) { __asm__ volatile(""); }

static KEEP void repeat(long n)
{
    while (n-- > 0) quiet();
}

static KEEP long down(long n) { return n ? down(n - 1) + sink : 0; }

static KEEP long choose(long k)
{
    switch (k) {
    case 0: return sink + 11;
    case 1: return sink ^ 22;
    case 2: return sink * 33;
    case 3: return sink - 44;
    case 4: return sink | 55;
    case 5: return fixed(2);
    default: return sink;
    }
}

static void leave(void) { __asm__ volatile("syscall" : : "a"(60), "D"(0) : "rcx", "r11", "memory"); }

__attribute__((used)) static void start(long *stack)
{
    long rounds = 0, sum = 0;
    for (char *digit = (char *)stack[2]; *digit; digit++) rounds = rounds * 10 + *digit - '0';
    for (long r = 0; r < rounds; r++) {
        sum += fixed(100);
        sum += nested(7, 5);
        sum += calling(6);
        repeat(4);
        sum += down(9);
        for (long k = 0; k < 8; k++) sum += choose(k);
    }
    sink = sum;
    leave();
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
