/* How long a command takes: alone, or under a tracer that passes each signal on and does nothing else, which is the
 * least that any tracer costs.
 *
 *   empty_tracer alone|apart|together FILE COMMAND...
 *
 * apart: where the scheduler puts them. together: tracer and command on one processor. FILE gets the nanoseconds, and how
 * often the command stopped. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FOLLOW = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC };

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int count, char **words)
{
    int traced = words[1][1] != 'l', together = words[1][0] == 't', go[2], status = 0;
    long stops = 0;
    char one = 0;
    if (count < 4 || pipe(go)) return 2;
    if (together) {
        cpu_set_t here;
        CPU_ZERO(&here);
        CPU_SET(sched_getcpu(), &here);
        sched_setaffinity(0, sizeof here, &here);
    }
    pid_t child = fork(), tid;
    if (!child) {
        if (read(go[0], &one, 1) == 1) execvp(words[3], words + 3);
        _exit(127);
    }
    if (traced && ptrace(PTRACE_SEIZE, child, 0, FOLLOW)) return 2;
    long begun = now();
    if (write(go[1], &one, 1) != 1) return 2;
    while ((tid = waitpid(-1, &status, __WALL)) > 0) {
        if (!WIFSTOPPED(status)) {
            if (tid == child) break;
            continue;
        }
        stops++;
        ptrace(PTRACE_CONT, tid, 0, status >> 16 ? 0 : WSTOPSIG(status));
    }
    FILE *out = fopen(words[2], "w");
    if (!out) return 2;
    fprintf(out, "%ld %ld\n", now() - begun, stops);
    fclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
