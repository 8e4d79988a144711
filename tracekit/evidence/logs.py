"""One log, of one rank or of many, as what it shows: how far groups are, what timed out, what died, what waits.

`line_scan` finds the lines, `log_lines`, `log_deaths` and `log_waits` read them; here they are put together by rank.
A line without `[rankN]:` belongs to the rank that its launcher's prefix, its `[Rank N]`, or the whole file names.
"""

import re
from dataclasses import replace
from typing import Final

from tracekit.evidence.line_scan import Line, Scan, scan_lines
from tracekit.evidence.log_deaths import Death, death_of, deaths_of
from tracekit.evidence.log_file import Attempt, GroupKey, Key, LogFile, Mark, rank_of_path
from tracekit.evidence.log_lines import (
    LITERALS,
    MESSAGES,
    Message,
    messages_of,
    time_before,
    when_of,
    whole_messages,
)
from tracekit.evidence.log_reports import STACK, call_stack, desync_report, fingerprints
from tracekit.evidence.nccl_calls import CALL, NcclCalls
from tracekit.evidence.stack_lines import OPENS
from tracekit.evidence.stacks import StackReader
from tracekit.files.source import Source
from tracekit.thresholds.evidence import MAX_DEATHS, MAX_LOG_RANKS, MAX_MARKS

_ATTEMPT: Final = re.compile(rb"(\d{1,4})/(\d{1,4}) attempts left")
_LAUNCHED: Final = re.compile(rb"(\d{1,4})/\d{1,4} attempts left; (?:will )?restart")


def read_log(source: Source, *, agents: int = 1) -> LogFile:
    """Return what a log shows; a file that is no log has no lines of interest. OSError passes through.

    agents: as for `rank_of_path`.
    """
    reader = _Reader(source, rank_of_path(source.uri, agents=agents))
    scan = Scan()
    for line in scan_lines(source, (*LITERALS, *OPENS), scan, (CALL, reader.take_calls)):
        reader.take(line)
    found = reader.result()
    found.size, found.damage = scan.size, scan.damage
    return found


class _Reader:
    """Takes the lines of one file in turn."""

    def __init__(self, source: Source, lone: int | None) -> None:
        self._source = source
        self._lone = lone
        self._open = Attempt()
        self.nccl = NcclCalls(self._key_of)
        self._stacks = StackReader(source.label)
        self._file = LogFile(source.label)
        self._offsets: dict[str, set[int]] = {"local": set(), "place": set()}
        self._ranks: set[int] = set()
        self._count = 0

    def take(self, line: Line) -> None:
        """Take one line of interest."""
        if b"- Init " in line.text:
            self.nccl.take_initialisations(line.text)
        if _ATTEMPT.search(line.text) and _LAUNCHED.search(line.text):
            self._next_attempt()
        when = when_of(line.text)
        if when is not None:
            self._file.first = self._file.first or when
            self._file.last = when
        self._stacks.take_thread(line)
        for message in whole_messages(line):
            self._take(line, message)

    def take_calls(self, data: bytes, left: int, right: int, base: int) -> None:
        self.nccl.take_calls(data, left, right, base)  # another one in each attempt

    def _key_of(self, head: bytes) -> Key:
        messages = [Message(head, None, None, None, None, None), *messages_of(head)]
        return self._key(messages[-1])

    def _take(self, line: Line, message: Message) -> None:
        key = self._key(message)
        if message.when is not None:
            self._open.last[key] = message.when
        used = self._take_group(key, message, line.offset)
        used = self._take_report(key, line, message) or used
        used = self._take_death(key, line, message) or used
        if message.stuck:
            self._open.stuck.add(key)
            self._file.watchdog = used = True
        if message.dump_asked_by is not None:
            self._open.asked_by.add(message.dump_asked_by)
        if not used:
            used = self._open.waits.take_tasks(message.text, line.after())
            self._count += used or self._open.waits.take(message)
        else:
            self._count += 1

    def _take_group(self, key: Key, message: Message, order: int) -> bool:
        """Take the state of a group and the call that timed out; a call without a group waits for its group's line."""
        if self._open.begins_again(key, message):
            self._next_attempt()
        if message.work is not None and self._open.timed_out is None:
            self._open.timed_out = (message.when, order)
        self._file.watchdog |= message.work is not None
        if message.group is None:
            if message.work is not None and message.work not in self._open.loose[key]:
                self._open.loose[key] = [*self._open.loose[key], message.work][-MAX_DEATHS:]
                self._open.places.update({} if message.place is None else {key: message.place})
            return message.work is not None
        periodic = b"update periodically" in message.text  # of no moment that all ranks share
        if periodic or (message.state is None and message.work is None and message.size is None):
            return False
        name = (message.group.name, message.group.desc)
        mark = self._open.marks[key].get(name)
        if mark is not None and mark.begins_again(message):
            self._next_attempt()
            mark = None
        if mark is None and len(self._open.marks) < MAX_MARKS:
            mark = self._open.marks[key][name] = Mark(message.group.place, message.group.unique)
        if mark is not None:
            before = mark.work
            mark.take(message)
            if message.at is not None:
                self._join(key, mark, message.at)
            self._open.group[key] = name
            if before is None and mark.work is not None:
                self._open.failed[key].append(mark)
        self._file.watchdog = self._file.watchdog or message.size is None
        return True

    def _join(self, key: Key, mark: Mark, at: int) -> None:
        """Join the call that timed out to the group whose line names its number."""
        for each in (key, ("place", -1 if mark.place is None else mark.place)):
            found = [work for work in self._open.loose.get(each, ()) if work.seq == at]
            if len(found) == 1:  # of several ranks at one place none is known to be this one
                self._open.loose[each].remove(found[0])
                mark.take_work(found[0])
                break

    def _take_report(self, key: Key, line: Line, message: Message) -> bool:
        """Take the states of other members, and the stack of the call that timed out where only one lacks it."""
        if STACK in message.text and len(marks := self._open.failed.pop(key, [])) == 1:
            marks[0].stack = call_stack(line.after())
            return True
        report = desync_report(message.text, line.after())
        writer = key if report is None else self._writer(key, line)
        report = report or fingerprints(message.text)
        if report is None or len(self._open.reports) >= MAX_DEATHS:
            return report is not None
        group = self._open.group.get(writer, ("", ""))
        self._open.reports.append((writer, group, report))
        mark = self._open.marks[writer].get(group)
        if mark is None:
            mark = self._open.marks[writer][group] = Mark(report.own)
        mark.size = mark.size or (len(report.members) if report.whole else None)
        self._file.watchdog = True
        return True

    def _writer(self, key: Key, line: Line) -> Key:
        """Return the process of a report, which begins a line of its own behind the prefix of its message."""
        if key[0] != "file":
            return key
        last = line.before.rstrip(b"\n").rpartition(b"\n")[2]
        found = [message for message in messages_of(last) if message.rank is not None]
        return self._key(found[-1]) if found else key

    def _take_death(self, key: Key, line: Line, message: Message) -> bool:
        """Take the deaths that a message reports, at the last time that its process wrote."""
        used = False
        for death in deaths_of(line, message):
            used = True
            when = death.when or time_before(line) or self._open.last.get(key) or self._file.last
            if len(self._open.deaths) < MAX_DEATHS:
                self._open.deaths.append((key, replace(death, when=when)))
        return used

    def _key(self, message: Message) -> Key:
        if message.rank is not None:
            self._ranks.add(message.rank)
            if message.local is not None:
                self._offsets["local"].add(message.rank - message.local)
            return "rank", message.rank
        if message.local is not None:
            if message.place is not None:
                self._offsets["place"].add(message.place - message.local)
            return "local", message.local
        if message.task is not None:
            return "rank", message.task
        if message.group is not None and message.group.desc == "default_pg":
            return "rank", message.group.place  # the place in the group of all ranks is the rank
        return ("place", message.place) if message.place is not None else ("file", 0)

    def _next_attempt(self) -> None:
        """Forget all of an earlier attempt: its numbers began again."""
        self._open = Attempt()
        self.nccl = NcclCalls(self._key_of)
        self._stacks = StackReader(self._source.label)
        self._file.attempts += 1

    def result(self) -> LogFile:
        """Return the file's contents by global rank."""
        file, opened = self._file, self._open
        for key, works in opened.loose.items():
            for work in works:
                mark = Mark(opened.places.get(key), work=work, size=work.group_size)
                mark.messages = work.call.op in MESSAGES
                self._add_loose(opened.marks[key], mark)
        keys = {
            *opened.marks,
            *opened.stuck,
            *(key for key, _ in opened.deaths),
            *(key for key, *_ in opened.reports),
        }
        alone = self._places_are_ranks()
        ranks = {key: self._rank(key) if key[0] != "place" or alone else None for key in keys}
        unnamed = (key for key, marks in opened.marks.items() if ("", "") in marks and key in opened.places)
        file.by_place = any(alone or key[0] != "place" for key in unnamed)
        for key, marks in opened.marks.items():
            if marks and (rank := ranks[key]) is not None:
                file.marks.setdefault(rank, {}).update(marks)
            file.unresolved += ranks[key] is None
        file.stuck = {rank for key in opened.stuck if (rank := ranks[key]) is not None}
        for key, death in opened.deaths:
            own = death.rank if death.rank is not None else self._rank_of_death(death, ranks[key])
            file.deaths.append(death_of(death, own))
        file.waits, file.asked_by, file.timed_out = opened.waits, opened.asked_by, opened.timed_out
        self._take_peers(file, ranks)
        file.nccl = self.nccl.placed(file.path, self._rank)
        file.stacks = self._stacks.result(self._rank_before, self._rank(("file", 0)))
        file.ranks = {
            *file.marks,
            *file.stuck,
            *(d.rank for d in file.deaths if d.rank is not None),
            *(p.rank for p in file.nccl if p.rank is not None),
            *self._ranks,
        }
        file.lines = self._count + self.nccl.lines + len(file.stacks)
        file.watchdog = file.watchdog or bool(file.marks)
        return file

    def _take_peers(self, file: LogFile, ranks: dict[Key, int | None]) -> None:
        """Put what ranks wrote of their peers under their global ranks."""
        opened = self._open
        own = self._rank(("file", 0)) if None in file.waits.longer else None
        if own is not None:
            file.waits.longer = {own if rank is None else rank: s for rank, s in file.waits.longer.items()}
        for key, group, report in opened.reports:
            file.reports.append((ranks[key], group, report))

    def _places_are_ranks(self) -> bool:
        """Return whether `[Rank N]` may be the global rank: one call of each, and the same number on all.

        It is the rank within the group of the call. Two processes of one place show that there are several groups.
        """
        works = [works for key, works in self._open.loose.items() if key[0] == "place"]
        return all(len(own) == 1 for own in works) and len({own[0].seq for own in works}) <= 1

    @staticmethod
    def _add_loose(marks: dict[GroupKey, Mark], mark: Mark) -> None:
        """Add a call of an unnamed group; of several the groups are unknown, and none is kept."""
        if ("", "") in marks:
            marks["", ""] = Mark(None)
        elif not marks:
            marks["", ""] = mark

    def _rank_of_death(self, death: Death, of_line: int | None) -> int | None:
        if death.pid is not None and death.pid in self._open.waits.pids:
            return self._open.waits.pids[death.pid]
        if death.local is not None:
            return self._rank(("local", death.local))
        return None if death.ended or death.pid is not None else of_line

    def _rank_before(self, head: bytes) -> int | None:
        """Return the global rank of the process that puts this before its lines."""
        key = self._key_of(head)
        return None if key == ("file", 0) else self._rank(key)

    def _rank(self, key: Key) -> int | None:
        """Return the global rank of a process; None where the file does not name it."""
        kind, number = key
        if kind == "rank":
            return number if number < MAX_LOG_RANKS else None
        if kind == "local":
            offsets = self._offsets["local"] or (set() if self._ranks else self._offsets["place"])
            return number + min(offsets) if len(offsets) == 1 else None
        if kind == "place":
            return None if self._ranks else number
        named = sorted(self._ranks)
        return named[0] if len(named) == 1 else None if named else self._lone
