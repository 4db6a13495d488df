/* Forms of branches and of loads and stores that belong together, as assembly: argv[1] rounds. Without a C library, so
   that every run takes the same edges. Prints a sum that depends on all of them. */

static long system_call(long number, long first, long second, long third)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x1 __asm__("x1") = second,
                     x2 __asm__("x2") = third;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}

static long word, pair[2] __attribute__((aligned(16)));

/* A loop that only the store's failure repeats. */
long add_exclusive(long *at, long by);
__asm__("add_exclusive: mov x9, x0\n1: ldxr x0, [x9]\n add x2, x0, x1\n stxr w3, x2, [x9]\n cbnz w3, 1b\n ret\n");
/* Compare and swap: a branch lies between the load and the store; one way out leaves the store undone. */
long swap_exclusive(long *at, long expected, long wanted);
__asm__(
    "swap_exclusive: mov x9, x0\n1: ldaxr x0, [x9]\n cmp x0, x1\n b.ne 2f\n stlxr w3, x2, [x9]\n cbnz w3, 1b\n ret\n"
    "2: clrex\n ret\n");
/* Two branches between them, one of which both ways reach the store; and a pair of words. */
long raise_pair(long *at, long least);
__asm__("raise_pair: mov x9, x0\n1: ldaxp x0, x2, [x9]\n cbz x1, 3f\n tbz x0, #0, 2f\n add x0, x0, #1\n"
        "2: add x0, x0, #3\n stlxp w3, x0, x2, [x9]\n cbnz w3, 1b\n ret\n3: mov x0, #7\n ret\n");
/* A load whose store never comes. */
long only_load(long *at);
__asm__("only_load: ldxr x0, [x0]\n tbnz x0, #1, 1f\n add x0, x0, #2\n1: ret\n");
/* Every condition, by flags from 0 to 15: one bit for each that is taken. */
long conditions(long flags);
#define TRY(name) " msr nzcv, x1\n mov x2, #1\n b." name " 1f\n mov x2, #0\n1: add x0, x2, x0, lsl #1\n"
__asm__("conditions: lsl x1, x0, #28\n mov x0, #0\n" TRY("eq") TRY("ne") TRY("cs") TRY("cc") TRY("mi") TRY("pl")
            TRY("vs") TRY("vc") TRY("hi") TRY("ls") TRY("ge") TRY("lt") TRY("gt") TRY("le") TRY("al")
                TRY("nv") " ret\n");
/* Bits and zeros of 32 and 64 bits. */
long bits(long value);
__asm__("bits: mov x1, x0\n mov x0, #0\n cbz w1, 1f\n add x0, x0, #1\n1: cbnz x1, 2f\n add x0, x0, #2\n"
        "2: tbz x1, #33, 3f\n add x0, x0, #4\n3: tbnz w1, #31, 4f\n add x0, x0, #8\n4: cbz xzr, 5f\n add x0, x0, #16\n"
        "5: tbnz x1, #63, 6f\n add x0, x0, #32\n6: ret\n");
/* Pointers with an authentication code, and landing pads. */
long authenticated(long value);
__asm__(".arch armv8.5-a\nauthenticated: paciasp\n str x30, [sp, #-16]!\n mov x19, x19\n adr x9, 1f\n paciza x9\n"
        " blraaz x9\n adr x9, 2f\n mov x10, #5\n pacib x9, x10\n braab_here: brab x9, x10\n hlt #0\n"
        "2: bti j\n adr x9, 3f\n pacdza x10\n br x9\n hlt #0\n3: bti j\n ldr x30, [sp], #16\n retaa\n"
        "1: bti c\n pacibsp\n add x0, x0, #1\n retab\n");
/* LSE atomics, which are one instruction. */
long atomics(long *at);
__asm__("atomics: mov x1, #1\n ldadd x1, x2, [x0]\n mov x3, x2\n casal x3, x1, [x0]\n swp x2, x3, [x0]\n mov x0, x3\n "
        "ret\n");
/* A call of the next instruction, a jump to itself that a counter leaves, and a table of jumps. */
long steps(long which);
__asm__(
    "steps: mov x9, x30\n bl 1f\n1: mov x30, x9\n and x0, x0, #3\n adr x10, 2f\n add x10, x10, x0, lsl #3\n br x10\n"
    "2: add x0, x0, #1\n b 3f\n add x0, x0, #2\n b 3f\n add x0, x0, #3\n b 3f\n add x0, x0, #4\n"
    "3: sub x0, x0, #1\n cbnz x0, 3b\n mov x0, #9\n ret\n");

static void print(unsigned long value)
{
    char text[24];
    int at = sizeof text;
    text[--at] = '\n';
    do text[--at] = '0' + value % 10;
    while (value /= 10);
    system_call(64, 1, (long)(text + at), (long)sizeof text - at);
}

__attribute__((used)) static void start(long *stack)
{
    long rounds = 0, sum = 0;
    for (char *digit = (char *)stack[2]; *digit; digit++) rounds = rounds * 10 + *digit - '0';
    for (long r = 0; r < rounds; r++) {
        sum += add_exclusive(&word, r);
        sum += swap_exclusive(&word, r & 1 ? word : -1, r);
        if (r % 16 == 5) sum += raise_pair(pair, r % 5) + (only_load(&word) & 0xFF);
        sum ^= conditions(r & 15);
        sum += bits((r & 3) << 32 | (r & 4) << 29 | (r & 1) << 63);
        sum += authenticated(sum) & 0xFF;
        sum += atomics(&word) & 0xFF;
        sum += steps(r);
    }
    print(sum & 0xFFFFFF);
    system_call(93, 0, 0, 0);
}

__asm__(".globl _start\n_start: mov x0, sp\n b start\n");
