/* Waiting for the threads of a recorded program, on Linux: what it takes of signals is passed on at once, in the thread
 * that waits, and Python gets everything else. Written as `PassingSignals` of capture/ptrace.py. */
#define _GNU_SOURCE
#include "lastbranch.h"

#if defined(__linux__)

#include <errno.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

enum { WALL = 0x40000000, MOST = 256 };

/* The thread of the next event that is no stop at one of the signals of `passes` (bit n - 1 for signal n), and its wait
 * status; or the negative errno, EINTR also after as many stops as take a few milliseconds. The number of stops is added
 * to `*stops`. */
EXPORT i64 lb_wait_passing(int *status, u64 passes, u64 *stops)
{
    for (int passed = 0; passed < MOST; passed++) {
        int found = 0, signal;
        pid_t tid = waitpid(-1, &found, WALL);
        if (tid < 0) return -errno;
        signal = found >> 8 & 0xFF;
        /* 0x7F: stopped; no PTRACE_EVENT; and no stop at a system call, which has 0x80 in its signal */
        if ((found & 0xFF) != 0x7F || found >> 16 || !signal || signal > 64 || !(passes >> (signal - 1) & 1)) {
            *status = found;
            return tid;
        }
        ptrace(PTRACE_CONT, tid, 0, (void *)(size_t)signal);
        ++*stops;
    }
    return -EINTR;
}

#else /* only Linux is recorded in this way */

EXPORT i64 lb_wait_passing(int *status, u64 passes, u64 *stops)
{
    (void)status, (void)passes, (void)stops;
    return -1;
}

#endif
