/* Maps the code files of its arguments in turn to the same address. At 256 times its number, each file has a loop. */
#include <fcntl.h>
#include <sys/mman.h>

static char *const place = (char *)0x500000000;

int main(int count, char **names)
{
    for (int round = 0; round < 1600; round++) {
        int which = 1 + round % (count - 1), fd = open(names[which], O_RDONLY);
        if (mmap(place, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) != place) return 1;
        ((void (*)(long))(place + 256 * which))(500000);
    }
    return 0;
}
