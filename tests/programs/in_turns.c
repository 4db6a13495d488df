/* So many threads as its first argument says, all there at the same time, of which one computes at a time: as many rounds as the
 * second says, and then the next one, without end. Few others have to wait for a processor so. */
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>

static sem_t turn[1000];
static int threads;
static long rounds;

static void *compute(void *number)
{
    volatile long sum = 0;
    intptr_t own = (intptr_t)number;
    for (;;) {
        sem_wait(turn + own);
        for (long i = 0; i < rounds; i++)
            if (i & 3) sum += i;
        sem_post(turn + (own + 1) % threads);
    }
    return 0;
}

int main(int count, char **words)
{
    pthread_t thread;
    threads = count > 2 ? atoi(words[1]) : 0;
    if (threads < 1 || threads > 1000) return 2;
    rounds = atol(words[2]);
    for (int i = 0; i < threads; i++) sem_init(turn + i, 0, 0);
    for (intptr_t i = 0; i < threads; i++)
        if (pthread_create(&thread, 0, compute, (void *)i)) return 1;
    sem_post(turn);
    return pthread_join(thread, 0);
}
