"""Parameters that not every rank holds once: tied ones under several names, and experts of some ranks."""

from torch import nn

from numerics.local.records.recorded import RecordedRun


def other_names(model: nn.Module) -> dict[str, list[str]]:
    """Return the other names of tied parameters, under which stages of a pipeline hold copies of them."""
    first = {p: name for name, p in model.named_parameters()}
    found: dict[str, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if first[p] != name:
            found.setdefault(first[p], []).append(name)
    return found


def expert_modules(recorded: RecordedRun, model: nn.Module) -> tuple[str, ...]:
    """Return the modules with all parameters on some data-parallel ranks and not on others."""
    every = set(recorded.run["dp"].tolist())
    part = {name: 0 < len(recorded.owners(name)) < len(every) for name, _ in model.named_parameters()}
    if not any(part.values()):
        return ()
    found = []
    for name, _ in model.named_modules():
        own = [one for parameter, one in part.items() if parameter.startswith(f"{name}.")]
        if name and own and all(own):
            found.append(name)
    return tuple(found)
