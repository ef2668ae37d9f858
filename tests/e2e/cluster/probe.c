/* A program for pods of tests. probe whoami: prints user and group. probe eat: takes memory until it is ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "whoami") == 0) {
        printf("%d:%d\n", (int)getuid(), (int)getgid());
        return 0;
    }
    while (count == 2 && strcmp(arguments[1], "eat") == 0) {
        char *taken = malloc(1 << 20);
        if (taken == NULL)
            return 3;
        memset(taken, 1, 1 << 20);
        usleep(1000);
    }
    return 2;
}
