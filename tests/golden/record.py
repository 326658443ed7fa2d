"""Record the answers of the golden replay again, or say what would change.

    python tests/golden/record.py                        write every answer that changed, and print how
    python tests/golden/record.py --case NAME            only cases whose verb/name contains NAME; may be repeated
    python tests/golden/record.py --check                write nothing; exit code 1 if anything would change
    python tests/golden/record.py --check --shuffle 7    run the cases in another order, which must not matter

For each file that changed the number of differences and the largest relative change of a number are printed. A change
of a number needs a line of reason in the commit that records it. Last digits depend on the machine (`rounding.py`): on
one that rounds differently from the recorded ones a check takes numbers for equal that nearly are, and with `--case`
such numbers keep their stored digits. Without `--case` all answers are written as this machine rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # traces.py and its like, which the inputs are made by

from golden.replay import ANSWERS, Case, Difference, answer, cases, differences, text_of, with_stored_digits
from golden.rounding import CLOSE, STORED, recorded_here, rounding

SHOWN = 3  # differences printed of each file


def main() -> int:
    asked = _arguments()
    known = cases()
    chosen = [one for one in known if not asked.case or any(part in one.id for part in asked.case)]
    if not chosen:
        print(f"no case is called {' or '.join(asked.case)}")
        return 2
    exact = recorded_here()
    if asked.shuffle is not None:
        random.Random(asked.shuffle).shuffle(chosen)
    began = time.perf_counter()
    close = CLOSE if (asked.check or asked.case) and not exact else 0.0
    changed = sum(_record(case, write=not asked.check, close=close) for case in chosen)
    if not (asked.check or asked.case):
        STORED.write_text(f"{rounding()}\n", encoding="utf-8")
    changed += sum(_forget(path, write=not asked.check) for path in _orphans(known))
    size = sum(path.stat().st_size for path in ANSWERS.rglob("*.json"))
    print(f"{len(chosen)} cases, {changed} changed, {size / 1e6:.2f} MB, {time.perf_counter() - began:.1f} s")
    return 1 if asked.check and changed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the golden replay.", epilog=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="cases whose id contains NAME")
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="order of the cases")
    return parser.parse_args()


def _record(case: Case, *, write: bool, close: float) -> bool:
    """Run a case, say how its answer differs from the stored one, store it; whether it changed."""
    with tempfile.TemporaryDirectory() as folder:
        text = text_of(answer(case, Path(folder)))
    before = case.stored.read_text(encoding="utf-8") if case.stored.exists() else None
    if before is not None and close:
        text = text_of(with_stored_digits(json.loads(before), json.loads(text), close))
    if text == before:
        return False
    found = None if before is None else list(differences(json.loads(before), json.loads(text), close=close))
    if close and found == []:
        return False
    print(_told(case, found))
    if write:
        case.stored.parent.mkdir(parents=True, exist_ok=True)
        case.stored.write_text(text, encoding="utf-8")
    return True


def _told(case: Case, found: list[Difference] | None) -> str:
    """What changed, the largest change of a number first."""
    if found is None:
        return f"{case.id}: new"
    if not found:
        return f"{case.id}: the order of keys"
    numbers = sorted((one for one in found if one.relative is not None), key=lambda one: -(one.relative or 0.0))
    largest = f"largest relative change {numbers[0].relative:.3g}" if numbers else "no number changed"
    shown = [*numbers[:1], *(one for one in found if one not in numbers[:1])][:SHOWN]
    more = len(found) - len(shown)
    rest = [f"  and {more} more"] if more else []
    head = f"{case.id}: {len(found)} differences, {len(numbers)} of them numbers, {largest}"
    return "\n".join([head, *(f"  {one}" for one in shown), *rest])


def _orphans(known: tuple[Case, ...]) -> list[Path]:
    """Answers that belong to no case."""
    return sorted(set(ANSWERS.rglob("*.json")) - {case.stored for case in known})


def _forget(path: Path, *, write: bool) -> bool:
    print(f"{path.parent.name}/{path.stem}: belongs to no case")
    if write:
        path.unlink()
    return True


if __name__ == "__main__":
    sys.exit(main())
