/* System calls that follow known branches, without a C library: getppid, which never waits, and nanosleep, which does.
   The labels are the addresses of the two calls. */

static long __attribute__((noinline)) work(unsigned long seed)
{
    for (int i = 0; i < 60; i++)
        __asm__ volatile(".rept 400\n xor %%edx, %%edx\n mov $0x7fffffffffff, %%rax\n div %0\n .endr"
                         : "+r"(seed)
                         :
                         : "rax", "rdx", "cc");
    return (long)seed;
}

static void __attribute__((noinline)) ask(void)
{
    long number = 110;
    __asm__ volatile(".globl ask_call\nask_call: syscall" : "+a"(number) : : "rcx", "r11", "memory");
}

static void __attribute__((noinline)) rest(void)
{
    long time[2] = {0, 20000}, number = 35;
    __asm__ volatile(".globl rest_call\nrest_call: syscall"
                     : "+a"(number)
                     : "D"(time), "S"(0)
                     : "rcx", "r11", "memory");
}

void __attribute__((noreturn)) _start(void)
{
    for (;;) {
        work(3);
        ask();
        work(5);
        rest();
    }
}
