/* Starts many threads that end at once, then a thread that works. Prints the id of the working thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void *nothing(void *argument) { return argument; }

static void *works(void *argument)
{
    volatile unsigned long sum = 0;
    struct timespec used;
    do {
        for (int i = 0; i < 10000; i++) sum += i & 3 ? i : 1;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    } while (used.tv_sec < 1);
    printf("%d\n", gettid());
    return argument;
}

int main(int count, char **words)
{
    pthread_t thread;
    for (int i = atoi(words[1]); i; i--) {
        pthread_create(&thread, NULL, nothing, NULL);
        pthread_join(thread, NULL);
    }
    pthread_create(&thread, NULL, works, NULL);
    pthread_join(thread, NULL);
    return count > 2;
}
