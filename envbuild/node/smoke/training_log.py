"""What training scripts print, read line by line: pure functions, one format for each kind of script.

`megatron`: the iteration lines of Megatron-LM, both Megatron-DeepSpeeds and MegatronAPP. `deepspeed`: the engine's
lines with `samples/sec`. `metaseq`: rows of `train_inner`. `alpa`: rows of the artifact's table of results. Any other
script: a pattern of its lines, such as `step {step} ... loss {loss}, {tokens} tokens/s`, where `{name}` is a number and
`...` any text. What a launcher puts in front of a line (`srun -l`, `mpiexec -l`, torchrun) is passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import List, Match, NamedTuple, Pattern

# The loss of a step, by format; a row of Alpa has none.
LOSS = {"megatron": "lm loss", "deepspeed": "loss", "metaseq": "loss"}
# A step whose loss was NaN or infinite is skipped by Megatron's loss scaler and told by this alone.
_NOT_FINITE = "number of nan iterations"

_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:nan|inf|infinity)"
# No record is longer, by far; a pattern would look at every part of such a line for its begin.
_LONGEST = 16384
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # and what else a terminal is told


class _Format(NamedTuple):
    """A line is a record where `begin` is found, and what follows it has (name, number) pairs of which one is `needs`.

    Its step is a group of `begin`, else one of the figures, else 0.
    """

    begin: Pattern[str]
    pair: Pattern[str]
    needs: str


_FORMATS = {
    "megatron": _Format(
        re.compile(r"(?:^|\s)iteration\s+(?P<step>[0-9]{1,15})/\s*(?P<iterations>[0-9]{1,15})\s*\|"),
        re.compile(rf"(?:^|\|)([^|:]*):\s*({_NUMBER})\s*(?=\||$)", re.IGNORECASE),
        "iterations",
    ),
    "deepspeed": _Format(
        re.compile(r"(?:^|[\s\]:])steps: (?P<step>[0-9]{1,15})\s"),
        re.compile(rf"([A-Za-z][A-Za-z /()]{{0,60}}): ({_NUMBER})(?=\s|$)", re.IGNORECASE),
        "samples/sec",
    ),
    # JSON whose figures are texts (`%g`); `update` is a fraction of the epoch, `num_updates` counts.
    "metaseq": _Format(
        re.compile(r"\|\s*train_inner\s*\|"),
        re.compile(rf'"([^"]{{1,60}})": "?({_NUMBER})"?(?=[,}}])', re.IGNORECASE),
        "num_updates",
    ),
    # numpy 2 writes `np.float64(1.5)` where numpy 1 wrote `1.5`.
    "alpa": _Format(
        re.compile(r"\{(?='tflops': )"),
        re.compile(rf"'([a-z_]+)': (?:np\.float[0-9]+\()?({_NUMBER})\)?(?=[,}}])", re.IGNORECASE),
        "tflops",
    ),
}
FORMATS = tuple(sorted(_FORMATS))

# A number of a pattern, `1,234` too; bounded, so that a line costs its length.
_FIGURE = (
    r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}(?:\.[0-9]{0,30})?|[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
    r"(?:[eE][-+]?[0-9]{1,4})?(?![0-9])|[-+]?(?:nan|infinity|inf)"
)
_PLACE = re.compile(r"\{([a-z][a-z0-9_]{0,60})\}")
_PIECE = re.compile(_PLACE.pattern + r"|(\s+)|[^{\s]+")
# What srun, torchrun's `--tee` and torch put before a rank's line.
_RANK = re.compile(r"(?:[0-9]+: )?(?:\[default[0-9]+\]:)?(?:\[rank[0-9]+\]: )?")


class Record(NamedTuple):
    """One line: the number of its step (0 where the format has none) and its figures under the names it gives them."""

    step: int
    values: dict[str, float]


def read_line(form: str, line: str) -> Record | None:
    """The record in a line of a format; None where the line is none. Raises KeyError for an unknown format."""
    if len(line) > _LONGEST:
        return None
    line = _COLOUR.sub("", line)
    return _of_pattern(form, line) if is_pattern(form) else _of_format(_FORMATS[form], line)


def is_pattern(form: str) -> bool:
    """Whether it is a pattern of lines rather than the name of a format."""
    return "{" in form


def pattern_names(form: str) -> list[str]:
    """The figures of a pattern. Raises ValueError for one that is ambiguous or malformed."""
    names = _PLACE.findall(form)
    rest = _PLACE.sub("\0", form)
    if "{" in rest or "}" in rest:
        raise ValueError("a figure is a name in braces, of lower-case letters, digits and underscores: {tokens_per_s}")
    if re.search(r"\0(?:\.\.\.)?\0", rest):
        raise ValueError("two figures have no text between them")
    if len(set(names)) != len(names):
        raise ValueError("two figures have the same name")
    return names


@lru_cache(maxsize=None)
def _segments(form: str) -> List[Pattern[str]]:
    """What is searched for one after the other."""

    def piece(match: Match[str]) -> str:
        name, gap = match.groups()
        return f"(?P<{name}>{_FIGURE})" if name else r"\s{1,80}" if gap else re.escape(match.group())

    texts = [_PIECE.sub(piece, part.strip()) for part in form.split("...")]
    # A number is found whole, not from its midst.
    return [re.compile(r"(?<![0-9.,])" * text.startswith("(?P") + text, re.IGNORECASE) for text in texts]


def _of_pattern(form: str, line: str) -> Record | None:
    values: dict[str, float] = {}
    end = 0
    for segment in _segments(form):
        match = segment.search(line, end)
        if match is None:
            return None
        end = match.end()
        values.update((name, float(value.replace(",", ""))) for name, value in match.groupdict().items())
    step = values.get("step", 0.0)
    return Record(int(step), values) if math.isfinite(step) else None


def _of_format(form: _Format, line: str) -> Record | None:
    match = form.begin.search(line)
    if match is None:
        return None
    pairs = [*match.groupdict().items(), *form.pair.findall(line[match.end() :])]
    values = {" ".join(name.split()): float(value) for name, value in pairs}
    step = values.get("num_updates", values.pop("step", 0.0))
    return Record(int(step), values) if form.needs in values and 0 <= step < math.inf else None


def read(form: str, text: str) -> list[Record]:
    """All records of a text, in its order."""
    records = (read_line(form, line) for line in text.splitlines())
    return [record for record in records if record is not None]


def without_ignored(lines: Iterable[str]) -> list[str]:
    """Without what Python says of an exception in a `__del__`, which often follows from the one that was raised."""
    kept: list[str] = []
    ignored: set[str] = set()  # whose exception is still to come, behind its traceback
    for line in lines:
        match = _RANK.match(line)
        rank = match.group() if match else ""
        rest = line[len(rank) :]
        if rest.startswith("Exception ignored "):
            ignored.add(rank)
        elif rank not in ignored:
            kept.append(line)
        elif not rest.startswith((" ", "Traceback ")):
            ignored.remove(rank)
    return kept


def losses(form: str, texts: Iterable[str]) -> list[tuple[int, float]]:
    """(step, loss) in order of steps, from what all ranks printed; a step that was skipped has no loss and no place."""
    by_step: dict[int, float] = {}
    loss = "loss" if is_pattern(form) else LOSS.get(form)
    for text in texts:
        for record in read(form, text):
            if not math.isfinite(by_step.get(record.step, 0.0)):
                continue  # what another rank, or a second run, has at that step does not mend it
            if loss in record.values:
                by_step[record.step] = record.values[loss]
            elif record.values.get(_NOT_FINITE):
                by_step[record.step] = math.nan
    return sorted(by_step.items())


def runs(records: list[Record]) -> list[list[Record]]:
    """Apart where a step is below the one before: a log that was appended to, or a training that began anew."""
    parts: list[list[Record]] = [[]]
    for record in records:
        if parts[-1] and record.step < parts[-1][-1].step:
            parts.append([])
        parts[-1].append(record)
    return parts


def not_finite(series: list[tuple[int, float]]) -> str | None:
    """The first loss that is no number."""
    return next((f"the loss is {loss} at step {step}" for step, loss in series if not math.isfinite(loss)), None)


def cut_short(records: list[Record]) -> str | None:
    """Where lines say how many iterations there are: that the one after the last line's is missing."""
    last = runs(records)[-1]
    if not last or "iterations" not in last[-1].values:
        return None
    step, of = last[-1].step, int(last[-1].values["iterations"])
    every = step - last[-2].step if len(last) > 1 else 1
    return f"its log ends at iteration {step} of {of}" if step + every <= of else None


def judge(series: list[tuple[int, float]], steps: int) -> str | None:
    """Why these losses do not show a training that works; None where they do.

    All steps must have told a finite loss, and the median of the last three must be below the first.
    """
    wrong = not_finite(series)
    if wrong:
        return wrong
    if len(series) < max(steps, 2):
        return f"the loss was reported for {len(series)} of {steps} steps"
    first, last = series[0][1], sorted(loss for _, loss in series[-3:])[len(series[-3:]) // 2]
    if not last < first:
        return f"the loss did not fall: {first:.4g} at first, {last:.4g} at last"
    return None
