/* The first process of every pod: holds its namespaces until it gets a signal, and reaps processes that its containers leave. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t ending = 0;

static void on_end(int signal_number) {
    (void)signal_number;
    ending = 1;
}

static void on_child(int signal_number) { (void)signal_number; }

int main(void) {
    sigset_t blocked, open;
    struct sigaction end = {.sa_handler = on_end}, child = {.sa_handler = on_child};
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGCHLD);
    /* Signals arrive only inside sigsuspend, so none is lost between a look at the flag and the wait. */
    if (sigprocmask(SIG_BLOCK, &blocked, &open) != 0 || sigaction(SIGINT, &end, NULL) != 0 ||
        sigaction(SIGTERM, &end, NULL) != 0 || sigaction(SIGCHLD, &child, NULL) != 0)
        return 1;
    while (!ending) {
        sigsuspend(&open);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
    }
    return 0;
}
