"""The order in which a script writes the files of a folder, learned from its saves.

The one rule: a save ends with the file that comes last before the first one is written again.
"""

import re
from typing import Dict, List, Set, Tuple

# name, inode, size and time of each file and link
Signature = Tuple[Tuple[str, int, int, int], ...]
# a file or folder, and its content, relative to the folder in which the script runs
State = Tuple[str, Signature]
NOTHING: State = ("", ())
# saves that must have the same files; and at most so many others make this forgotten
SEEN, MOST_SEEN = 2, 4
DIGITS = re.compile("[0-9]+")
NUMBERED = re.compile("[^/]*[0-9][^/]*/")


class SaveOrder:
    """What is known of the order, from one state of the folder to the next."""

    def __init__(self) -> None:
        self._oldest: Set[str] = set()  # files that were written first when all had gone
        self._first = ""  # the file that each save begins with; empty: that is not known
        self._order: List[str] = []  # all files in their order, as the last `_times` saves had them
        self._times = 0
        # whether files go away, as those of `step_3/` do: then numbers of the upper folders do not
        # count, and the newest file counts of those that have the same name
        self._is_numbered = False

    def note(self, before: State, now: State) -> None:
        """Learn from a folder that changed, came after another one, or after `NOTHING`."""
        old, new = self._written(before), self._written(now)
        gone = old.keys() - new.keys()
        is_other = before[0] != now[0]
        if (gone or is_other) and min(new.values()) > max(old.values(), default=0):
            self._oldest = {name for name in new if new[name] == min(new.values())}
        if not self._is_numbered and not is_other and any(map(NUMBERED.match, gone)):
            self._is_numbered, self._first, self._times = True, "", 0
            return
        rewritten = [name for name in old if new.get(name, 0) > old[name]]
        if not self._first and rewritten:
            first = min(rewritten, key=new.__getitem__)
            self._first = first if first in map(self._key, self._oldest) else ""
        if self._first in rewritten:
            names = sorted(old, key=lambda name: (old[name], name))
            at = names.index(self._first)
            is_same = set(names) == set(self._order)
            self._times = min(MOST_SEEN, self._times + (1 if is_same else -1))
            if is_same or self._times < 1:
                self._order, self._times = names[at:] + names[:at], max(1, self._times)

    def is_complete(self, state: State) -> bool:
        """Return whether all files have been written in their order since the first one was."""
        written = self._written(state)
        if self._times < SEEN or written.keys() != set(self._order):
            return False
        times = [written[name] for name in self._order]
        return times == sorted(times)

    def _written(self, state: State) -> Dict[str, int]:
        path, signature = state
        times: Dict[str, int] = {}
        for name, _, _, time_ns in signature:
            key = self._key(name[len(path) + 1 :])
            times[key] = max(time_ns, times.get(key, 0))
        return times

    def _key(self, name: str) -> str:
        upper, slash, rest = name.partition("/")
        return f"{DIGITS.sub('', upper)}/{rest}" if slash and self._is_numbered else name
