/* `work` takes one way when `first` calls it and the other when `second` does. */
static volatile unsigned sink;

__attribute__((noinline)) void work(unsigned rounds, int way)
{
    for (unsigned i = 0; i < rounds; i++) {
        if (way) sink += i * 3;
        else sink ^= i << 2;
    }
}

__attribute__((noinline)) void first(unsigned rounds)
{
    work(rounds, 1);
    sink++;
}

__attribute__((noinline)) void second(unsigned rounds)
{
    work(rounds, 0);
    sink--;
}

int main(void)
{
    for (unsigned i = 0; i < 400000; i++) {
        first(300);
        second(300);
    }
    return 0;
}
