/* Compares what x86_instruction.c says of instructions with the processor: each instruction that may be executed outside
 * of its program is executed here, once, with nothing executable behind.
 *
 *     x86_pieces [SEED [COUNT]]
 *
 * It must end where the bytes end, touch no memory but the operand (its size at most), change no x87 or MMX register
 * unless the state says so, and neither trap nor ask the kernel. Violations are printed, once for each opcode, and make
 * the result 1. */
#define _GNU_SOURCE
#include "x86_instruction.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, TF = 0x100 };

static u8 *code; /* a page of code; the page behind it is not mapped */
static u8 *operand; /* the same for the operand */
static volatile int signal_number, signal_code;
static volatile u64 fault_at;
static u8 bytes[2 * LONGEST_INSTRUCTION];
static u64 random_state = 1, executed, undefined, ended, decoded, unsupported, wrong;

static u64 any(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1Du;
}

static volatile int inside;
static u64 given[16];
static const int GREG[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
static u64 start_at, boundary;
static greg_t host[NGREG];
static u64 after_rip;
static u16 x87_status;
static u8 x87_tags;
static u8 vectors_before[256], vectors_changed;

static void on_signal(int number, siginfo_t *info, void *context)
{
    ucontext_t *c = context;
    greg_t *g = c->uc_mcontext.gregs;
    if (!inside) { /* int3 of `try`: start */
        memcpy(host, g, sizeof host);
        for (int i = 0; i < 16; i++) g[GREG[i]] = (greg_t)given[i];
        g[REG_RIP] = (greg_t)start_at;
        g[REG_EFL] = 0x202 | TF;
        struct _libc_fpstate *f = c->uc_mcontext.fpregs;
        f->ftw = 0, f->swd = 0, f->cwd = 0x37F, f->mxcsr = 0x1F80;
        memset(vectors_before, 0x11, 256);
        memcpy(f->_xmm, vectors_before, 256);
        inside = 1;
        return;
    }
    signal_number = number, signal_code = info->si_code, fault_at = (u64)info->si_addr;
    after_rip = (u64)g[REG_RIP];
    struct _libc_fpstate *f = c->uc_mcontext.fpregs;
    x87_status = f->swd, x87_tags = (u8)f->ftw;
    vectors_changed = memcmp(f->_xmm, vectors_before, 256) != 0;
    f->ftw = 0, f->swd = 0, f->cwd = 0x37F, f->mxcsr = 0x1F80;
    memcpy(g, host, sizeof host);
    inside = 0;
}

static u8 told[1 << 16];

static void tell(const struct instruction *i, const u8 *from, const char *what)
{
    u32 key = 2166136261u;
    for (const char *p = what; *p; p++) key = (key ^ (u8)*p) * 16777619u;
    for (int n = 0; n <= i->opcodes && n < 3; n++) key = (key ^ from[n]) * 16777619u;
    key = (key ^ i->opcode) * 16777619u;
    key = (key >> 16 ^ key) & 0xFFFF;
    if (told[key]) return;
    told[key] = 1;
    wrong++;
    printf("%-40s", what);
    for (int n = 0; n < i->length; n++) printf(" %02x", from[n]);
    printf("   signal %d code %d at %lx rip %+ld size %d state %d\n", signal_number, signal_code, (long)fault_at,
           (long)(after_rip - boundary), i->size, i->state);
    fflush(stdout);
}

static void try(const u8 *from)
{
    struct instruction i;
    decoded++;
    if (!x86_decode(&i, from, LONGEST_INSTRUCTION, 0x400000)) return;
    if (i.length < 1 || i.length > LONGEST_INSTRUCTION) printf("length %d\n", i.length), exit(1);
    if (i.what != EXECUTED) {
        unsupported += i.what == UNSUPPORTED;
        return;
    }
    u8 out[2 * LONGEST_INSTRUCTION];
    int size = i.length, scratch = NO_REGISTER;
    memcpy(out, from, (size_t)size);
    for (int n = 0; n < 16; n++) given[n] = 0x10000 + 0x200u * (u64)n;
    if (i.memory) {
        static const u8 choices[3] = {RSI, RDI, RBX};
        for (int n = 2; n >= 0; n--)
            if (choices[n] != i.reg && choices[n] != i.other) scratch = choices[n];
        size = x86_at_register(&i, from, scratch, out);
        if (size > LONGEST_INSTRUCTION) tell(&i, from, "piece too long");
        given[scratch] = (u64)operand + PAGE - i.size;
    }
    memset(operand, 0x7F, PAGE);
    start_at = (u64)code + PAGE - (u64)size;
    memcpy(code + PAGE - size, out, (size_t)size);
    executed++;
    __asm__ volatile("int3" ::: "memory");
    undefined += signal_number == SIGILL;
    if (after_rip == boundary && (signal_number == SIGTRAP || (signal_number == SIGSEGV && fault_at == boundary)))
        ended++;
    else if (signal_number == SIGTRAP) tell(&i, from, "ends elsewhere");
    else if (signal_number == SIGSEGV && fault_at == boundary) tell(&i, from, "is longer");
    else if (signal_number == SIGSEGV && signal_code == SEGV_MAPERR)
        tell(&i, from, i.memory ? "touches other memory" : "touches memory");
    else if (signal_number == SIGSEGV && signal_code == SEGV_ACCERR) tell(&i, from, "protected memory");
    else if (signal_number == SIGBUS) tell(&i, from, "bus error");
    if ((x87_tags || x87_status) && i.state != X87_STATE) tell(&i, from, "changes x87 state");
    if (vectors_changed && i.state == GENERAL_STATE) tell(&i, from, "changes vectors");
    for (int n = 0; n < PAGE - i.size; n++)
        if (operand[n] != 0x7F) {
            tell(&i, from, "writes before its operand");
            break;
        }
}

static void fill(u8 *at, int n)
{
    while (n--) *at++ = (u8)any();
}

int main(int argc, char **argv)
{
    u64 count = 2;
    if (argc > 1) random_state = strtoull(argv[1], 0, 0) | 1;
    if (argc > 2) count = strtoull(argv[2], 0, 0);
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    for (int n = 0; n < 5; n++) sigaction((int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}[n], &action, 0);
    code = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    operand = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(code + PAGE, PAGE);
    mprotect(operand + PAGE, PAGE, PROT_NONE);
    munmap(operand + PAGE, PAGE);
    boundary = (u64)code + PAGE;
    /* legacy maps: prefixes, every opcode, every ModRM */
    static const u8 prefixes[][4] = {{0},          {0x66},       {0xF2},       {0xF3},       {0x48},
                                     {0x66, 0x48}, {0xF3, 0x48}, {0xF2, 0x48}, {0xF0},       {0x66, 0xF3},
                                     {0x66, 0xF2}, {0x45},       {0x67},       {0x64},       {0x66, 0x4F},
                                     {0xF0, 0x4F}, {0x2E},       {0x48, 0x66}, {0x4F, 0x48}, {0xF2, 0xF3}};
    for (u64 round = 0; round < count; round++) {
        for (size_t p = 0; p < sizeof prefixes / 4; p++)
            for (int map = 1; map <= 4; map++)
                for (int opcode = 0; opcode < 256; opcode++)
                    for (int modrm = 0; modrm < 256; modrm++) {
                        int n = 0;
                        fill(bytes, sizeof bytes);
                        for (int k = 0; k < 4 && prefixes[p][k]; k++) bytes[n++] = prefixes[p][k];
                        if (map > 1) bytes[n++] = 0x0F;
                        if (map > 2) bytes[n++] = map == 3 ? 0x38 : 0x3A;
                        bytes[n++] = (u8)opcode, bytes[n] = (u8)modrm;
                        try(bytes);
                    }
        /* VEX and EVEX */
        for (int map = 0; map < 8; map++)
            for (int opcode = 0; opcode < 256; opcode++)
                for (int more = 0; more < 256; more++) {
                    fill(bytes, sizeof bytes);
                    bytes[0] = 0xC4, bytes[1] = (u8)((bytes[1] & 0xE0) | map), bytes[3] = (u8)opcode;
                    if (more & 1) bytes[2] |= 0x78;
                    try(bytes);
                    fill(bytes, sizeof bytes);
                    bytes[0] = 0xC5, bytes[2] = (u8)opcode;
                    if (more & 1) bytes[1] |= 0x78;
                    try(bytes);
                    for (int k = 0; k < 3; k++) {
                        fill(bytes, sizeof bytes);
                        bytes[0] = 0x62, bytes[1] = (u8)((bytes[1] & 0xF0) | map), bytes[2] |= 4, bytes[4] = (u8)opcode;
                        if (more & 1) bytes[2] |= 0x78, bytes[3] |= 8;
                        if (more & 2) bytes[3] &= 0x78;
                        try(bytes);
                    }
                }
    }
    /* anything */
    for (u64 n = 0; n < count * 1000000; n++) {
        fill(bytes, sizeof bytes);
        try(bytes);
    }
    printf("pieces: decoded %ld, unsupported %ld, executed %ld, to their end %ld, undefined %ld\n", (long)decoded,
           (long)unsupported, (long)executed, (long)ended, (long)undefined);
    return wrong != 0;
}
