/* SPDX-License-Identifier: Apache-2.0 */
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "/sbin/duckd"
#define PUBLIC_KEY "/etc/duck/fleet.pub"
#define IDENTITY "/run/duck/identity"
#define WORDS_MAX 24
#define RESTART_MS_MIN 1000
#define RESTART_MS_MAX 30000
#define STEADY_MS 60000 /* a duckd that lived this long did not fail at its start */
#define STOP_MS 2000

static pid_t child;
static uint64_t started_at_ms, start_again_ms, pause_ms = RESTART_MS_MIN;

static unsigned cpu_count(void) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    return (unsigned)CPU_COUNT(&allowed);
}

/* A spinning duckd needs a CPU for itself; the session gets the others. */
static unsigned session_cores(const struct options *options) {
    unsigned cpus = cpu_count();
    if (options->cores != 0) return options->cores < cpus ? options->cores : cpus;
    return strcmp(options->poll, "spin") == 0 && cpus > 1 ? cpus - 1 : cpus;
}

void duckd_start(const struct lease *lease, const struct options *options) {
    char listen[32], cores[16];
    struct in_addr address = {.s_addr = lease->given.address};
    snprintf(listen, sizeof listen, "%s:%u", inet_ntoa(address), options->port);
    snprintf(cores, sizeof cores, "%u", session_cores(options));
    const char *poll = options->poll;
    if (strcmp(poll, "spin") == 0 && cpu_count() == 1) poll = "sleep"; /* it would starve itself */
    const char *words[WORDS_MAX] = {
        PROGRAM,    "--image", "--name", options->name,     "--listen", listen,   "--fleet-pub",
        PUBLIC_KEY, "--cores", cores,    "--identity-file", IDENTITY,   "--poll", poll};
    int count = 14;
    if (strcmp(poll, "spin") == 0) words[count++] = "--pin";
    if (options->memory_limit[0] != 0) {
        words[count++] = "--memory-limit";
        words[count++] = options->memory_limit;
    }
    started_at_ms = now_ms();
    child = fork();
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execv(PROGRAM, (char *const *)(const void *)words);
        say("cannot start %s: %s", PROGRAM, strerror(errno));
        _exit(127);
    }
    if (child < 0) say("cannot fork: %s", strerror(errno));
    start_again_ms = child < 0 ? now_ms() + RESTART_MS_MIN : 0;
}

void duckd_stop(void) {
    int status;
    if (child <= 0) return;
    kill(child, SIGTERM);
    for (uint64_t end = now_ms() + STOP_MS; now_ms() < end; usleep(10000))
        if (waitpid(child, &status, WNOHANG) == child) {
            child = 0;
            return;
        }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    child = 0;
}

static void ended(int status) {
    child = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == DUCKD_EXIT_REBOOT) {
        say("asked to reboot");
        machine_reboot();
    }
    bool steady = now_ms() - started_at_ms > STEADY_MS;
    pause_ms = steady ? RESTART_MS_MIN : pause_ms * 2;
    if (pause_ms > RESTART_MS_MAX) pause_ms = RESTART_MS_MAX;
    start_again_ms = now_ms() + pause_ms;
    if (WIFSIGNALED(status))
        say("duckd was ended by signal %d; again in %u ms", WTERMSIG(status), (unsigned)pause_ms);
    else
        say("duckd ended with code %d; again in %u ms", WEXITSTATUS(status), (unsigned)pause_ms);
}

void duckd_look(const struct lease *lease, const struct options *options) {
    int status;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG))
        if (pid == child) ended(status);
    if (child <= 0 && start_again_ms != 0 && now_ms() >= start_again_ms)
        duckd_start(lease, options);
}
