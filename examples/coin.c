/* Adds up half of a table of random numbers. One bit of each number says whether it is added, so the branch that looks at
 * the bit goes one way as often as the other, without a pattern: no processor predicts it. docs/guides/viewer.md finds it.
 *
 *     gcc -g -O1 -o coin examples/coin.c
 */
#include <stdint.h>
#include <stdio.h>

enum { NUMBERS = 4096, ROUNDS = 50000 };

static uint32_t numbers[NUMBERS];

static void fill(void)
{
    uint32_t state = 1;
    for (int i = 0; i < NUMBERS; i++) {
        state = state * 1664525 + 1013904223;
        numbers[i] = state >> 8;
    }
}

__attribute__((noinline)) static uint32_t mixed(uint32_t value)
{
    for (int i = 0; i < 3; i++) value = (value ^ value >> 15) * 2654435761u;
    return value;
}

__attribute__((noinline)) static uint64_t sum_chosen(int bit)
{
    uint64_t sum = 0;
    for (int i = 0; i < NUMBERS; i++) /* goes on 4,095 times of 4,096: easy to predict */
        if (numbers[i] >> bit & 1) /* as good as a coin */
            sum += mixed(numbers[i]);
    return sum;
}

int main(void)
{
    uint64_t sum = 0;
    fill();
    for (int round = 0; round < ROUNDS; round++) sum += sum_chosen(round % 16);
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
