"""libtpu as a compiler for chips that are not here."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch_tpu._check import chips
from torch_tpu._check.report import needed

LARGER = "tpu7x:1x1x1"

ENVIRONMENT = {  # otherwise libtpu waits minutes for a metadata server
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v6e-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class CheckError(RuntimeError):
    """The compiler can't be asked at all."""


def library() -> str:
    """Path of libtpu: TORCH_TPU_CHECK_LIBRARY, or that of the installed package."""
    if path := os.environ.get("TORCH_TPU_CHECK_LIBRARY"):
        if not Path(path).is_file():
            raise CheckError(f"TORCH_TPU_CHECK_LIBRARY names {path}, which is no file")
        return path
    package = importlib.util.find_spec("libtpu")
    path = package and package.origin and Path(package.origin).with_name("libtpu.so")
    if not path or not path.is_file():
        raise CheckError("the TPU compiler is not installed: `pip install libtpu` (it needs no TPU)")
    return str(path)


class Compiler:
    """A child process with one topology open, started again when a program takes it down."""

    def __init__(self, topology: str, verbose: bool = False) -> None:
        """Raises ValueError for a topology that libtpu does not know, CheckError without a libtpu that works."""
        chips.chip_of(topology)
        self.library, self.verbose, self.process = library(), verbose, None
        self.noise = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (as long as the process)
        self.folder = tempfile.TemporaryDirectory()
        self.open(topology)

    def open(self, topology: str) -> None:
        """Goes over to another topology; what is raised is as above."""
        self.chip = chips.chip_of(topology)
        if self.process is None:
            self._start()
        self.topology, self.about = topology, self._ask({"open": {"library": self.library, "topology": topology}})
        if why := self.about.get("error"):
            if "died" in why or "opology" in why:
                raise ValueError(f"libtpu has no topology '{topology}' ({why}); known are {chips.known()}")
            raise CheckError(f"{self.library} can't be used: {why}")

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch_tpu._check.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self.verbose else self.noise,
            text=True,
            env={**os.environ, **ENVIRONMENT, "TORCH_TPU_CHECK": ""},
            start_new_session=True,  # Ctrl-C is ours to handle
        )

    def compile(self, program: str, replicas: int = 1, partitions: int = 1, keep: bool = False) -> dict[str, Any]:
        """What the compiler says of a StableHLO module; ``{"error": words}`` if it refuses it or dies of it. With
        ``keep`` also ``executable`` and ``optimized``, the bytes of both."""
        if self.process is None:
            self.open(self.topology)
        folder = Path(self.folder.name)
        file = folder / "program.mlir"
        file.write_text(program)
        request = {"program": str(file), "replicas": replicas, "partitions": partitions}
        kept = {name: folder / name for name in ("executable", "optimized")} if keep else {}
        answer = self._ask({"compile": request | {name: str(path) for name, path in kept.items()}})
        if needed(answer.get("error", "")) and (replicas, partitions) == (1, 1) and self.topology != LARGER:
            answer |= self._elsewhere(request)
        if "error" not in answer:
            answer |= {name: path.read_bytes() for name, path in kept.items()}
        return answer

    def _elsewhere(self, request: dict[str, Any]) -> dict[str, Any]:
        """What fills the memory, from a chip that has more: the compiler tells nothing of a program it refuses."""
        here = self.topology
        try:
            self.open(LARGER)
            return {"held": self._ask({"compile": request}).get("held", [])}
        except (ValueError, CheckError):
            return {}
        finally:
            self.open(here)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        code, self.process = self.process.wait(), None
        return {"error": f"the compiler died ({code}): {self._last_words()}"}

    def _last_words(self) -> str:
        self.noise.seek(0)
        lines = [line for line in self.noise.read().splitlines() if line.strip()]
        telling = [line for line in lines if "heck failed" in line or line.startswith("F")]
        return (telling or lines or ["no word"])[-1].strip()[:300]

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
