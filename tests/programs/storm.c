/* Forks, vforks and execs, 150 of them. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    int sum = 0, status;
    for (int i = 0; i < 150; i++) {
        pid_t child = i % 3 ? fork() : vfork();
        if (!child) {
            if (i % 2 || i % 3 == 0) execl("/bin/true", "true", (char *)NULL);
            _exit(3);
        }
        waitpid(child, &status, 0);
        sum += WEXITSTATUS(status);
    }
    printf("%d\n", sum);
    return 0;
}
