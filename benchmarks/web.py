"""How fast the workbench answers: processor time of its views, and fifty browsers at once for a minute.

    python benchmarks/web.py                views: p50, p95 and the slowest of many states, in processor time
    python benchmarks/web.py --load         fifty clients for a minute on loopback: answers, errors, p95, memory

Sliders are moved as people do: one choice after the other, each a state that nobody asked for before, so that what is
remembered does not help.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from ridgeline.core.encode import to_json
from ridgeline.web import PageState, page_view
from ridgeline.web.blocks import ProblemList
from ridgeline.web.state import page_choices

SLIDERS = (
    "tp",
    "pp",
    "microbatch",
    "recompute",
    "shard",
    "x_compute",
    "x_bandwidth",
    "x_scaleup",
    "x_capacity",
    "batch",
)
STATES = 200
LIMIT_MS = 100.0
CLIENTS, SECONDS = 50, 60.0


def moves(page: str, count: int, seed: int = 0) -> Iterator[PageState]:
    """States of a person who moves one slider after the other."""
    draw = random.Random(seed)
    kinds = ({}, {"kind": "decode", "chips": "8", "pp": "1", "batch": "64", "seq": "4096"})
    state = PageState(page=page).choose(**kinds[seed % 2])
    for _ in range(count):
        key = draw.choice(SLIDERS)
        state = state.choose(**{key: draw.choice(page_choices()[key].offers())})
        yield state


def measure(page: str, count: int) -> dict[str, float]:
    """Milliseconds of processor time of a page's views, JSON included."""
    spent = []
    for seed in (0, 1):
        for state in moves(page, count // 2, seed):
            began = time.process_time()
            view = page_view(state, {})
            json.dumps(to_json(view))
            if not isinstance(view.blocks[0], ProblemList):  # a state that cannot run is answered at once
                spent.append((time.process_time() - began) * 1e3)
    ordered = sorted(spent)
    return {"p50": ordered[len(ordered) // 2], "p95": ordered[int(len(ordered) * 0.95)], "most": ordered[-1]}


def views() -> int:
    """Print the processor time of each page that has sliders."""
    missed = 0
    for page in ("predict", "sense", "compare", "describe", "run"):
        page_view(PageState(page=page), {})  # what is loaded once
        found = measure(page, STATES)
        missed += found["p95"] > LIMIT_MS
        print(f"{page:10} " + "  ".join(f"{name} {value:6.1f} ms" for name, value in found.items()))
    print(f"limit: p95 {LIMIT_MS:g} ms")
    return int(missed > 0)


class ClientLoad:
    """Fifty clients, each moving sliders of its own; what they saw."""

    def __init__(self, base: str, token: str) -> None:
        self.base, self.token = base, token
        self.until = time.monotonic() + SECONDS
        self.lock = threading.Lock()
        self.waits: list[float] = []
        self.errors: list[str] = []

    def client(self, seed: int) -> None:
        """One client until the time is over."""
        ask = build_opener(ProxyHandler({})).open
        pages = itertools.cycle(("predict", "describe", "compare", "home"))
        for state in moves("predict", 1_000_000, seed):
            if time.monotonic() > self.until:
                return
            page = next(pages)
            url = f"{self.base}/api/view/{page}?{state.query}"
            began = time.monotonic()
            try:
                with ask(Request(url, headers={"X-Ridgeline-Token": self.token}), timeout=60) as answer:
                    json.load(answer)
            except (URLError, OSError, ValueError) as wrong:
                with self.lock:
                    self.errors.append(f"{url}: {wrong}")
            with self.lock:
                self.waits.append(time.monotonic() - began)


def memory_bytes(process: int) -> int:
    """Resident bytes of a process."""
    text = Path(f"/proc/{process}/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * resource.getpagesize()


def load() -> int:
    """Print what fifty clients saw in a minute."""
    words = [sys.executable, "-m", "ridgeline", "open", "--json", "--seconds", str(SECONDS + 60)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += server.stdout.readline()
        opened = json.loads(text)
        crowd = ClientLoad(f"http://127.0.0.1:{opened['port']}", opened["url"].partition("token=")[2])
        threads = [threading.Thread(target=crowd.client, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 3)
        early = memory_bytes(server.pid)
        for thread in threads:
            thread.join()
        late = memory_bytes(server.pid)
        server.terminate()
    ordered = sorted(crowd.waits)
    print(f"{CLIENTS} clients, {SECONDS:g} s: {len(ordered):,} answers, {len(crowd.errors)} errors, "
          f"{len(ordered) / SECONDS:.1f}/s, p50 {ordered[len(ordered) // 2]:.2f} s, "
          f"p95 {ordered[int(len(ordered) * 0.95)]:.2f} s; memory {early / 1e6:.0f} MB after a third, "
          f"{late / 1e6:.0f} MB at the end")  # fmt: skip
    for line in crowd.errors[:3]:
        print(line)
    return int(bool(crowd.errors))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", action="store_true")
    raise SystemExit(load() if parser.parse_args().load else views())
