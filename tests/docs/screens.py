"""Pictures of the pages that docs/ shows, made of the samples: `python -m tests.docs.screens` writes them again.

Each is the head of a page that a documented command writes, in headless Chromium, light. The page over windows is that
of the job of docs/trend.md, which no sample holds; that of a wrong run is of the runs of docs/guide/wrong.md.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import tracekit
from tests.docs.shown import printed, sessions
from tests.house.source import ROOT
from tests.report.browser import CHROMIUM, QUIETLY
from tests.trend.jobs import windows
from tracekit.report.html.trend import trend_html

FOLDER = ROOT / "docs" / "screens"
HEIGHTS = {"breakdown": 1080, "slow": 1060, "stuck": 730, "trend": 1000, "wrong": 1490}
"""Of pictures whose page fits less than a screen, needs less of it, or holds what matters below."""
MOST_BYTES = 150_000


def by_command(command: str) -> Callable[[Path], None]:
    """Writes the page of a command that ends in `--html`."""
    return lambda page: print(printed(f"{command} {page}").splitlines()[0])


def over_windows(page: Path) -> None:
    """The page of the job of docs/trend.md."""
    run = windows(page.parent / "run", 12, lambda rank, window: 1 + 0.02 * window * (rank == 2))
    page.write_text(trend_html(tracekit.trend(run)), encoding="utf-8")


def compared(page: Path) -> None:
    """The page of the run with a planted bug, with its ladder; some two minutes."""
    commands = [command for command, _ in sessions(ROOT / "docs" / "guide" / "wrong.md")]
    with chdir(page.parent):
        for command in (c for c in commands if c.startswith("reftrain run")):
            printed(command)
        print(printed(f"{commands[-1]} --ladder --html {page}").splitlines()[0])


PAGES: dict[str, Callable[[Path], None]] = {
    "slow": by_command("tracekit slowrank sample_traces/demo_slow_tp --quiet --html"),
    "stuck": by_command("tracekit hang sample_traces/hang_host_stall --quiet --html"),
    "breakdown": by_command("tracekit breakdown sample_traces/slow_compute --quiet --html"),
    "trend": over_windows,
    "wrong": compared,
}
"""What writes the page of each picture, by its name."""


def taken(page: Path, picture: Path) -> None:
    """Write the head of a page as a picture."""
    command = [
        str(CHROMIUM), *QUIETLY, f"--user-data-dir={page.parent / 'profile'}", "--hide-scrollbars",
        f"--window-size=1000,{HEIGHTS.get(picture.stem, 1150)}", "--virtual-time-budget=5000",
        f"--screenshot={picture}", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=120, check=True)


def main() -> int:
    """Write all pictures; 1 where no Chromium is installed or one is too large."""
    if CHROMIUM is None:
        print("no Chromium is installed (Debian: apt install chromium)", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        with TemporaryDirectory() as folder:
            write(Path(folder) / "page.html")
            taken(Path(folder) / "page.html", FOLDER / f"{name}.png")
        print(f"{name}: {(FOLDER / f'{name}.png').stat().st_size} bytes")
    return int(any(p.stat().st_size > MOST_BYTES for p in FOLDER.glob("*.png")))


if __name__ == "__main__":
    sys.exit(main())
