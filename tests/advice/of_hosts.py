"""What a file of hosts is refused for, and what the refusals advise."""

from pathlib import Path

from tests.advice.register import Call, case
from tracekit.placement import read_hosts


def hosts_case(part: str, wrong: bytes, right: str, world: int = 4) -> None:
    """Enter a case of a wrong file; the advice is to write it `right`."""

    def walked(folder: Path, _patch: object) -> tuple[Call, Call]:
        (folder / "wrong").write_bytes(wrong)
        (folder / "right").write_text(right)
        return lambda: read_hosts(folder / "wrong").of_job(world, {}), lambda: read_hosts(
            folder / "right"
        ).of_job(world, {})

    case(part)(walked)


hosts_case("is not text; name a hostfile", b"\xff", "a slots=4")
hosts_case("names no host; write `rank,host`", b"# later", "rank,host\n0,a")
hosts_case("hosts without slots", b"a\nb\nc", "a slots=2\nb slots=1\nc slots=1")
hosts_case("the job of {} ranks; give the file", b"rank,host\n4,a", "rank,host\n3,a")
hosts_case("{}:{}: {}; {}", b"a slots=0", "a slots=8")


@case("cannot be read ({}); name a hostfile")
def _(folder, _patch):
    (folder / "hosts").write_text("a slots=4")
    return lambda: read_hosts(folder), lambda: read_hosts(folder / "hosts")
