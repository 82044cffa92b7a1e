"""A wall clock that tests set: for the processes of one run alone, never for this machine.

The one rule: only the wall clock is moved. What counts since the boot stays as it is, as on a
machine whose clock a person or NTP sets.
"""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long ahead_ns(void) {
    static volatile long long *shown;
    if (!shown) {
        int file = open(getenv("TEST_CLOCK"), O_RDONLY | O_CLOEXEC);
        shown = mmap(0, sizeof *shown, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return *shown;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(which, now);
    if (!status && which == CLOCK_REALTIME) {
        long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + ahead_ns();
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (at) *at = precise.tv_sec;
    return precise.tv_sec;
}
"""


@dataclass(frozen=True, slots=True)
class WallClock:
    """The wall clock of all processes that get `environment`, at first this machine's."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> WallClock:
        source = folder / "clock.c"
        source.write_text(SHIM)
        library = str(folder / "clock.so")
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", library, str(source), "-ldl"]
        subprocess.run(build, check=True, capture_output=True)
        clock = cls(folder)
        clock.set(0.0)
        return clock

    def set(self, ahead_s: float) -> None:
        """Set it so many seconds ahead of this machine's, from now on."""
        path = self.folder / "ahead"
        if not path.exists():
            path.write_bytes(struct.pack("q", 0))
        with path.open("r+b") as file:
            file.write(struct.pack("q", int(ahead_s * 1e9)))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.folder / "clock.so"),
            "TEST_CLOCK": str(self.folder / "ahead"),
        }
