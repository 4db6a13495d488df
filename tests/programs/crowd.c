/* So many threads as its argument says, all there at the same time; prints their number. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_barrier_t all;

static void *meet(void *unused) { pthread_barrier_wait(&all); return unused; }

int main(int count, char **words)
{
    int threads = count > 1 ? atoi(words[1]) : 0;
    pthread_t thread[1000];
    if (threads < 1 || threads > 1000)
        return 2;
    pthread_barrier_init(&all, 0, threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(thread + i, 0, meet, 0))
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], 0);
    printf("%d\n", threads);
    return 0;
}
