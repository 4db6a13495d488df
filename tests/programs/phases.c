/* A loop of three branches of three kinds, for ever: a conditional jump that is always taken, a jump through a register,
   and a direct jump. */

int main(void)
{
    __asm__ volatile("   lea 3f(%%rip), %%rax\n"
                     "   mov $1, %%ecx\n"
                     "1: test %%ecx, %%ecx\n"
                     "   jnz 2f\n"
                     "   nop\n"
                     "2: jmp *%%rax\n"
                     "   nop\n"
                     "3: nop\n"
                     "   jmp 1b\n" ::
                         : "rax", "rcx", "cc");
    return 0;
}
