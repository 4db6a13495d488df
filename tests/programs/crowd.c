/* So many threads as its first argument says, all there at the same time; each computes as many rounds as the second says. Prints
 * their number. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_barrier_t all;
static long rounds;

static void *meet(void *unused)
{
    volatile long sum = 0;
    pthread_barrier_wait(&all);
    for (long i = 0; i < rounds; i++)
        if (i & 3) sum += i;
    return unused;
}

int main(int count, char **words)
{
    int threads = count > 1 ? atoi(words[1]) : 0;
    pthread_t thread[1000];
    if (threads < 1 || threads > 1000) return 2;
    rounds = count > 2 ? atol(words[2]) : 0;
    pthread_barrier_init(&all, 0, threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(thread + i, 0, meet, 0)) return 1;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
    printf("%d\n", threads);
    return 0;
}
