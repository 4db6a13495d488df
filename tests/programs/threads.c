/* Four threads that compute, then pass a turn round through a condition variable. */
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, STEPS = 10000000, TURNS = 500 };

static long results[THREADS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn;

static void *work(void *argument)
{
    long me = (long)argument, sum = me;
    for (int i = 0; i < STEPS; i++) {
        if ((sum ^ i) & 4) sum += i;
        else sum -= 3;
    }
    results[me] = sum;
    for (int i = 0; i < TURNS; i++) {
        pthread_mutex_lock(&mutex);
        while (turn % THREADS != me) pthread_cond_wait(&changed, &mutex);
        turn++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    long sum = 0;
    for (long i = 0; i < THREADS; i++) pthread_create(threads + i, NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) sum += results[i];
    printf("%ld %d\n", sum, turn);
    return 0;
}
