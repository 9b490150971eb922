"""Compiles every plan of this process for a topology, in the background, while the program goes on."""

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_tpu._check.compiler import Compiler
from torch_tpu._check.report import Report, report

POLL = 0.2  # seconds


class Watch:
    """From its start on, the runtime dumps the program of each plan it meets, and a thread has them compiled."""

    def __init__(self, topology: str, verbose: bool = False) -> None:
        """Raises what `Compiler` does."""
        self.compiler = Compiler(topology, verbose)
        self.folder = tempfile.TemporaryDirectory()
        self.failure: Exception | None = None
        self.before = os.environ.get("TORCH_TPU_DUMP")
        os.environ["TORCH_TPU_DUMP"] = self.folder.name
        self.reports: dict[str, Report] = {}
        self.seen: list[Path] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tpu-check", daemon=True)
        self._thread.start()

    def _waiting(self) -> list[Path]:
        done = set(self.seen)
        return sorted((p for p in Path(self.folder.name).glob("*.mlir") if p not in done), key=os.path.getmtime)

    def _work(self) -> None:
        try:
            self._until_the_end()
        except Exception as error:  # raised where somebody waits
            self.failure = error

    def _until_the_end(self) -> None:
        while True:
            ending = self._end.is_set()
            waiting = self._waiting()
            for file in waiting:
                self._compile(file)
            if ending and not waiting:
                return
            self._end.wait(POLL)

    def _compile(self, file: Path) -> None:
        text, starts = file.read_text(), json.loads(file.with_suffix(".json").read_text())
        name, key = file.stem.rsplit("-", 1)
        answer = self.compiler.compile(text)
        self.reports[key] = report(
            starts[0][1] if len(starts) == 1 else f"{starts[0][1]} … {starts[-1][1]}" if starts else name,
            text, answer, self.compiler.about, self.compiler.chip, starts)  # fmt: skip
        self.seen.append(file)

    def drain(self) -> None:
        """Waits for what was met so far. Raises what ended the thread."""
        torch.tpu.synchronize()
        while self._thread.is_alive() and self._waiting():
            time.sleep(POLL / 4)
        if self.failure:
            raise self.failure

    def finish(self, tick: Callable[[int, int], None] = lambda done, all_: None) -> list[Report]:
        """Waits for what was met so far, telling ``tick`` how far it is; the reports, in the order of meeting."""
        if torch.tpu.is_initialized():
            torch.tpu.synchronize()
        self._end.set()
        while self._thread.is_alive():
            tick(len(self.seen), len(list(Path(self.folder.name).glob("*.mlir"))))
            self._thread.join(POLL)
        self.close()
        if self.failure:
            raise self.failure
        return list(self.reports.values())

    def close(self) -> None:
        if self.before is None:
            os.environ.pop("TORCH_TPU_DUMP", None)
        else:
            os.environ["TORCH_TPU_DUMP"] = self.before
        self.compiler.close()


def count(reports: dict[str, Report], segments: list[dict[str, Any]]) -> None:
    """Notes how often each program ran."""
    times: dict[str, int] = {}
    for s in segments:
        if key := s.get("program"):
            times[key] = times.get(key, 0) + max(s.get("runs") or s["times"], 1)
    for key, r in reports.items():
        r.times = times.get(key, 1)
