"""Bytes that reach new lines of a reader, found by atheris: `python -m tests.fuzz.guided --seconds 60`.

Each reader that is written in Python runs in a process of its own, with its modules instrumented; the corpus starts
with what the fuzzer of `tests.fuzz` damages. Inputs that end in a fault stay in `--keep`.
"""

import argparse
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import current_process
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

OURS = ["tracekit", "tracekit_cli", "numerics", "reftrain"]
TARGETS = ("configuration", "machine", "schedule.csv", "schedule.txt", "order plan", "dump", "trace")
SEEDS = 12
FINE = ("answered", "refused", "nameless")
LONGEST = 8192
MEMORY = 4 << 30
Try = Callable[[bytes], str]
"""Reads bytes as a file of its kind; returns how that ends, in a word of `tests.fuzz.outcome`."""


def of_commands(root: Path) -> dict[str, Try]:
    """Readers that a whole command calls, by target."""
    from tracekit_cli.numerics_commands.replay import plan
    from tracekit_cli.reftrain_commands.run import run
    from tracekit_cli.reftrain_commands.schedule import schedule
    from tracekit_cli.reftrain_commands.simulate import simulate

    from tests.fuzz.outcome import outcome

    small = ["--preset", "tiny", "--mesh", "tp=2,pp=2", "--steps", "1", "--quiet", "--json", "-"]
    calls = {
        "configuration": (run, "x.toml", ["{}", "--dry-run", "--quiet"]),
        "machine": (simulate, "x.toml", [*small, "--hardware", "{}"]),
        "schedule.csv": (schedule, "x.csv", ["{}", "--json", "-"]),
        "schedule.txt": (schedule, "x.txt", ["{}", "--json", "-"]),
        "order plan": (plan, "order_plan.json", [str(root), str(root), "--json", "-"]),
    }

    def made(target: str) -> Try:
        command, name, arguments = calls[target]
        path = root / name

        def attempt(data: bytes) -> str:
            path.write_bytes(data)
            return outcome(command, [a.replace("{}", str(path)) for a in arguments], root)[0]

        return attempt

    return {target: made(target) for target in calls}


def of_readers(root: Path) -> dict[str, Try]:
    """Readers whose command does much else, by target."""
    from tracekit.dumps.transfer import DumpReader, Parcel
    from tracekit.files.source import Source
    from tracekit.ingest.readers import read_file

    def dump(data: bytes) -> str:
        path = root / "dump_0"
        path.write_bytes(data)
        try:
            return "answered" if isinstance(DumpReader(timed=True)(str(path)), Parcel) else "refused"
        except MemoryError:  # what its worker tells
            return "refused"

    def trace(data: bytes) -> str:
        path = root / "rank0.json"
        path.write_bytes(data)
        return (
            "answered"
            if read_file(Source(str(path), path.name, len(data)), root / "x.parquet").status == "ok"
            else "refused"
        )

    return {"dump": dump, "trace": trace}


def whole(target: str, folder: Path) -> None:
    """Files of a target's kind into `folder`, as the fuzzer of `tests.fuzz` makes and damages them."""
    from tests.fuzz.other_readers import OTHERS
    from tests.fuzz.readers import TRACEKIT

    reader, pattern = {
        "configuration": ("TOML of a run", "*.toml"), "machine": ("TOML of a machine", "*.toml"),
        "schedule.csv": ("schedule", "*.csv"), "schedule.txt": ("schedule", "*.txt"),
        "order plan": ("order plan", "*/order_plan.json"), "dump": ("dumps", "dump_*"), "trace": ("trace", "*.json"),
    }[target]  # fmt: skip
    for seed in range(SEEDS):
        with TemporaryDirectory() as made:
            {**TRACEKIT, **OTHERS}[reader](Random(seed), Path(made))
            for path in Path(made).glob(pattern):
                (folder / f"{seed}-{path.name}").write_bytes(path.read_bytes())


def fuzz(target: str, seconds: int, seed: int, keep: Path) -> None:
    """Fuzz one target in this process, which ends with it; a fault leaves its bytes in `keep`."""
    import atheris

    current_process()._config["daemon"] = True  # type: ignore[attr-defined]  # no worker for each input
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with atheris.instrument_imports(include=OURS):
        import tracekit_cli.program  # noqa: F401 (all of ours is imported within)

        folder = Path(TemporaryDirectory().name)
        corpus, root = folder / "corpus", folder / "in"
        corpus.mkdir(parents=True)
        root.mkdir()
        whole(target, corpus)
        attempt = {**of_commands(root), **of_readers(root)}[target]
        for path in corpus.iterdir():
            attempt(path.read_bytes())  # what it imports late

    def once(data: bytes) -> None:
        end = attempt(data)
        if end not in FINE:
            raise AssertionError(end)

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        f"-seed={seed}",
        "-timeout=20",
        "-rss_limit_mb=0",
    ]
    found = f"-artifact_prefix={keep}/{target.replace(' ', '-')}-"
    atheris.Setup([target, *options, found, str(corpus)], once)
    atheris.Fuzz()


def told(target: str, seconds: int, seed: int, keep: Path) -> str:
    """A row of the table: what a process that fuzzes one target says at its end."""
    call = [sys.executable, "-m", "tests.fuzz.guided", "--target", target, "--seconds", str(seconds)]
    done = subprocess.run(
        [*call, "--seed", str(seed), "--keep", str(keep)], capture_output=True, text=True, check=False
    )
    seen = re.findall(r"#(\d+)\s.*?cov: (\d+) ", done.stderr) or [("0", "0")]
    ends = re.findall(r"(?:Error|ERROR): (.*)", done.stderr) if done.returncode else []
    return f"| {target} | {seen[-1][0]} | {seen[0][1]} | {seen[-1][1]} | {(*ends, 'none')[0][:90]} |"


def main() -> None:
    """Fuzz one target, or each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("fuzz_found"))
    args = parser.parse_args()
    args.keep.mkdir(exist_ok=True)
    if args.target:
        fuzz(args.target, args.seconds, args.seed, args.keep)
    print("| reader | inputs | branches of the corpus | at the end | fault |\n|---|---|---|---|---|")
    for target in TARGETS:
        print(told(target, args.seconds, args.seed, args.keep), flush=True)


if __name__ == "__main__":
    main()
