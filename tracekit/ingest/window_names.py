"""The window in the path of a trace: its number within a job, and whether the job trained in it.

Frameworks write a folder or a file for each window of the profiler and put the progress of the job into its name:
torchtitan and torchtune `iteration_20/rank3…`, Ray Train `worker_3_epoch_2…`, others `step_100` or `ep0-ba10`. Files of
one rank with paths that differ only in that number are windows of one job. Lightning names the loop (`fit-…`,
`…validation_step…`); steps of each loop are numbered separately. torch's own handler names host and process, and a
process is of one job.
"""

import re
from pathlib import PurePath

from tracekit.files.witness import WindowName
from tracekit.ingest.identify import HANDLER

PROGRESS = re.compile(
    r"(?<![a-z])((?:iterations?|iters?|it|(?:global[-_]?)?steps?|epochs?|ep|batch(?:es)?|ba|cycles?|windows?)[-_=#]?)"
    r"(\d{1,12})(?!\d)"
)
"""A word for the progress of a job, and its number."""
TRAINING = r"fit|train(?:ing)?"
BESIDE = r"valid(?:ation|ate)?|val|eval(?:uation|uate)?|test(?:ing)?|predict(?:ion)?|sanity"
LOOP = re.compile(rf"(?<![a-z])(?:{TRAINING}|({BESIDE}))(?![a-z])")
"""A word for the loop of a job; the group matches one of `BESIDE`, a loop without training."""
TIME = re.compile(r"\.(\d{9,19})(?=\.pt\.trace\.json)")
PACKED = re.compile(r"\.(?:gz|zst|zstd)$")


def window_name(label: str) -> WindowName | None:
    """Return the window in the path of a trace; None if it names neither progress, loop nor process."""
    *folders, name = PurePath(label.replace("\\", "/").lower()).parts or ("",)
    name = PACKED.sub("", name)
    found = [m for part in (*folders, name) for m in PROGRESS.finditer(part)]
    loops = {m[1] or "" for m in LOOP.finditer(name)}
    handler = HANDLER.match(name)
    if not found and not loops and handler is None:
        return None
    numbers = tuple(int(m[2]) for m in found)
    if not found and handler is not None:
        numbers = tuple(int(m[1]) for m in TIME.finditer(name))
    process = handler is not None and not found
    erased = LOOP.sub("~", TIME.sub("", name) if process else re.sub(r"\d+", "*", name))
    place = "/".join([*(PROGRESS.sub(r"\1*", f) for f in folders), erased])
    loop = min(loops - {""}, default="")
    words = "/".join([*(m[0] for m in found), *([loop] if loop else [])])
    return WindowName(place, numbers, loop, words)
