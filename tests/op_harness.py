"""Holds every example of the op table against PyTorch: schema, result types (Meta) and values (CPU).

    python tests/op_harness.py [REGEX] [--text] [--refused]

Builds nothing: `cargo build -p tpu-aten --example lower` first, or let it (it calls cargo, which honours
CARGO_TARGET_DIR). Programs run on the CPU PJRT plugin (or the one $PJRT_PLUGIN names) in a child process, so that an
abort costs one example.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

# the lowering is held against PyTorch alone, whatever state the device module is in
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

HERE = Path(__file__).resolve().parent
# Sums in another order: the error grows with the length, not with the op.
MATMUL_LIKE = re.compile(
    r"mm|matmul|bmm|dot|conv|linear|attention|addmv|\bmv|addr|ger|baddbmm|cdist|einsum|outer|rnn|lstm|gru"
)
SLACK = 8


# ---------------------------------------------------------------- the child: one client, programs one after the other


def device_main() -> None:
    """Reads pickled (text, [(code, dims, bytes)]) and answers [(code, dims, bytes)] or an error string."""
    import fastatomstruct_xla_cpu
    import pypjrt

    class Options(pypjrt.CompileOptions):
        """XLA's CPU drops NaN from maximum and minimum unless told; without fusion emitters it compiles faster."""

        def encode(self, abi) -> bytes:
            out = super().encode(abi)
            for name in (b"xla_cpu_enable_fast_min_max", b"xla_cpu_use_fusion_emitters"):
                entry = b"\x0a" + bytes([len(name)]) + name + b"\x12\x02\x10\x00"  # {key, {bool_field: false}}
                out += b"\x3a" + bytes([len(entry)]) + entry  # env_option_overrides = 7
            return out

    plugin = os.environ.get("PJRT_PLUGIN") or str(fastatomstruct_xla_cpu.library_path())
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    client = pypjrt.Client.create(plugin, options={"cpu_device_count": 1})
    with client.devices() as devices:
        device = devices[0]
        while True:
            try:
                text, inputs = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                exe = client.compile(text, options=Options())
                # an empty array still needs an address
                buffers = [
                    client.buffer_from_host(bytearray(data or b"\0"), code, dims, device) for code, dims, data in inputs
                ]
                reply = []
                for out in exe(*buffers):
                    room = bytearray(max(out.nbytes, 1))
                    out.to_host(room)
                    reply.append((out.element_type, list(out.dimensions), bytes(room[: out.nbytes])))
            except Exception as e:  # the plugin's word goes to the report
                reply = f"{type(e).__name__}: {e}"
            pickle.dump(reply, answers)
            answers.flush()


class Device:
    """The child, restarted when a program takes it down."""

    def __init__(self):
        self.child = None

    def run(self, text: str, inputs: list) -> list | str:
        if self.child is None:
            env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
            self.child = subprocess.Popen(
                [sys.executable, __file__, "--device"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if not os.environ.get("HARNESS_STDERR") else None, env=env)  # fmt: skip
        try:
            pickle.dump((text, inputs), self.child.stdin)
            self.child.stdin.flush()
            return pickle.load(self.child.stdout)
        except (EOFError, BrokenPipeError):
            error = self.child.stderr.read().decode(errors="replace")[-400:] if self.child.stderr else ""
            self.child.wait()
            code, self.child = self.child.returncode, None
            return f"the plugin died ({code}) {error}"

    def close(self):
        if self.child:
            self.child.stdin.close()
            self.child.wait()


# ---------------------------------------------------------------- the lowering, one process


def lower_binary() -> str:
    cargo = subprocess.run(
        ["cargo", "build", "-q", "-p", "tpu-aten", "--example", "lower", "--message-format=json"],
        cwd=HERE.parent, capture_output=True, text=True)  # fmt: skip
    for line in cargo.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "lower":
            return message["executable"]
    errors = [m["message"]["rendered"] for m in map(json.loads, cargo.stdout.splitlines()) if "message" in m]
    sys.exit("".join(e for e in errors if e) + cargo.stderr)


class Lower:
    """Asks the lowering for one program at a time."""

    def __init__(self, binary: str):
        self.child = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, request: dict) -> dict:
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())


# ---------------------------------------------------------------- one example


class Harness:
    def __init__(self):
        import op_examples
        import torch

        self.torch, self.examples = torch, op_examples
        torch.set_num_threads(1)
        self.codes = dict(zip(
            [torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
             torch.uint64, torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.complex64,
             torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn], range(1, 18)))  # fmt: skip
        self.dtypes = {v: k for k, v in self.codes.items()}
        # c10::ScalarType, which a ScalarType argument travels as
        self.scalar_types = dict(zip(
            [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
             torch.float64], range(8))) | {torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
             torch.float8_e5m2: 23, torch.float8_e4m3fn: 24, torch.uint16: 27, torch.uint32: 28,
             torch.uint64: 29}  # fmt: skip
        binary = lower_binary()
        self.table = json.loads(subprocess.run([binary, "--list"], capture_output=True, check=True).stdout)
        self.lower, self.device = Lower(binary), Device()

    def overload(self, name: str):
        """The functional overload, else the in-place one that it stands for."""
        base, _, over = name.partition(".")
        for candidate in (base, base + "_"):
            packet = getattr(self.torch.ops.aten, candidate, None)
            op = getattr(packet, over or "default", None)
            if op is not None:
                return op, candidate != base
        return None, False

    def check_schema(self, entry: dict) -> str | None:
        op, _ = self.overload(entry["name"])
        if op is None:
            return "no such overload"
        theirs = op._schema
        try:
            ours = self.torch._C.parse_schema("aten::" + entry["schema"])
        except RuntimeError as e:
            return f"does not parse: {str(e).splitlines()[0]}"

        def args(schema):
            return [(a.name, str(a.type), a.kwarg_only, a.N, repr(a.default_value)) for a in schema.arguments]

        if args(ours) != args(theirs):
            return f"arguments differ from {theirs}"
        if [str(r.type) for r in ours.returns] != [str(r.type) for r in theirs.returns]:
            return f"results differ from {theirs}"
        has = self.torch._C._dispatch_has_kernel_for_dispatch_key
        # with a kernel of CPU's own (silu_backward) PyTorch means backends to have theirs too
        if has(op.name(), "CompositeImplicitAutograd") and not has(op.name(), "CPU"):
            return "is CompositeImplicitAutograd: PyTorch decomposes it before any backend"
        return None

    def tree(self, f, values):
        """`f` over the tensors of an argument list."""
        torch, host = self.torch, self.examples.OnHost
        return [
            f(v) if isinstance(v, (torch.Tensor, host)) else self.tree(f, v) if isinstance(v, list) else v
            for v in values
        ]

    def call(self, op, inplace: bool, args: list, device: str):
        """Results as a flat list, and the arguments after the call."""
        if device == "cpu" and (reference := self.examples.REFERENCES.get(op.name())):
            args = self.tree(lambda t: t.clone(), args)
            return list(reference(*args)), args
        torch, host = self.torch, self.examples.OnHost

        def move(v):
            return v.tensor.clone() if isinstance(v, host) else v.clone().to(device)

        args = self.tree(move, args)
        arguments = op._schema.arguments
        for k, a in enumerate(arguments):
            if isinstance(args[k], (bool, int, float, complex)) and str(a.type) in ("Tensor", "Optional[Tensor]"):
                args[k] = torch.tensor(args[k])  # few ops take a number where the schema says Tensor
        positional = [v for v, a in zip(args, arguments) if not a.kwarg_only]
        keyword = {
            a.name: v for v, a in zip(args, arguments) if a.kwarg_only and not (v is None and a.has_default_value())
        }
        if device == "meta" and "device" in [a.name for a in arguments]:
            keyword["device"] = "meta"
        torch.manual_seed(0)
        out = op(*positional, **keyword)
        flat: list = []
        for o in out if isinstance(out, (tuple, list)) else [out] if op._schema.returns else []:
            flat.extend(o if isinstance(o, (tuple, list)) else [] if isinstance(o, int) else [o])
        return flat, args

    def wire(self, v):
        torch, host = self.torch, self.examples.OnHost
        if isinstance(v, host):
            return dict(self.wire(v.tensor), host=True)
        if isinstance(v, torch.Tensor):
            return {"t": str(v.dtype)[6:], "dims": list(v.shape)}
        if isinstance(v, torch.dtype):
            return self.scalar_types[v]
        if isinstance(v, complex):
            return {"c": [v.real, v.imag]}
        if isinstance(v, float) and not (abs(v) < float("inf")):
            return {"f": str(v)}
        if isinstance(v, (list, tuple)):
            return [self.wire(x) for x in v]
        if isinstance(v, (torch.device, torch.layout, torch.memory_format)):
            return None
        return v

    def bytes_of(self, t) -> bytes:
        t = t.detach().resolve_conj().resolve_neg().contiguous()
        return bytes(t.reshape(-1).view(self.torch.uint8).numpy()) if t.numel() else b""

    def feed(self, param: dict, args: list):
        """A parameter's value as (code, dims, bytes)."""
        torch = self.torch
        dtype = getattr(torch, param["t"])
        if param["rng"]:
            return self.codes[dtype], [2], (1234).to_bytes(8, "little") + (0).to_bytes(8, "little")
        v = args[param["arg"]]
        v = v[param["elem"]] if isinstance(v, (list, tuple)) else v
        if isinstance(v, self.examples.OnHost):
            v = v.tensor
        if not isinstance(v, torch.Tensor):
            wide = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}[type(v)]
            v = torch.tensor(v, dtype=wide).to(dtype)
        return self.codes[dtype], list(v.shape), self.bytes_of(v.to(dtype))

    def lowered(self, entry: dict, example: str):
        """The reply, the arguments, the CPU's results with what the call left in its arguments, the request."""
        op, inplace = self.overload(entry["name"])
        if op is None:
            raise LookupError("no such overload")
        args = self.examples.parse(example, op._schema)
        expected, after = self.call(op, inplace, args, "cpu")
        try:
            types, _ = self.call(op, inplace, args, "meta")
        except Exception:
            types = expected
        types = [None if e is None else t for t, e in zip(types, expected)]  # what Meta gives though nobody asked
        outs = [None if t is None else self.wire(t) for t in types]
        request = {"op": entry["name"], "args": [self.wire(a) for a in args], "outs": outs}
        # only what the lowering was told to give: Meta's present results, then the updates
        names = [a.name for a in op._schema.arguments]
        want = [e for e, t in zip(expected, types) if t is not None]
        updated = [after[names.index(u)] for u in entry["updates"]]
        want += [t for t in updated if isinstance(t, self.torch.Tensor)]
        return self.lower(request), args, want, request

    def run(self, entry: dict, example: str, show: bool) -> tuple[str, str]:
        """("ok" | "refused" | "FAIL", why)."""
        try:
            reply, args, want, request = self.lowered(entry, example)
        except Exception as e:
            return "FAIL", f"the example itself: {type(e).__name__}: {str(e).splitlines()[0]}"
        verdict, got = self.programs(reply, request, args, show)
        if verdict != "ok":
            return verdict, got
        if len(got) != len(want):
            return "FAIL", f"{len(got)} results, wanted {len(want)}"
        if invariants := self.examples.INVARIANTS.get(f"aten::{entry['name']}"):
            got, want = invariants(*got), invariants(*want)
        for k, (g, w) in enumerate(zip(got, want)):
            if entry["counted"] and g.numel() >= w.numel():  # the results stand in front of larger ones
                g = g.reshape(-1)[: w.numel()].reshape(w.shape)
            why = self.differs(entry, g, w)
            if why:
                return "FAIL", f"result {k}: {why}"
        return "ok", ""

    def programs(self, reply: dict, request: dict, args: list, show: bool):
        """("ok", results) or what went wrong, of one program, or of the two that a counted call takes."""
        torch = self.torch
        if "refused" in reply:
            return "refused", reply["refused"]
        if "error" in reply:
            return "FAIL", f"lowering: {reply['error']}"
        if show:
            print(reply["text"])
        results = self.device.run(reply["text"], [self.feed(p, args) for p in reply["params"]])
        if isinstance(results, str):
            return "FAIL", results[:300]
        got = [
            torch.frombuffer(bytearray(data), dtype=self.dtypes[code]).reshape(dims)
            if data else torch.empty(dims, dtype=self.dtypes[code])
            for code, dims, data in results
        ]  # fmt: skip
        checks = got[len(got) - reply["checks"] :]
        got = got[: len(got) - reply["checks"]]
        if not all(c.item() for c in checks):
            return "FAIL", "a check failed"
        if reply["found"]:
            second = self.lower({**request, "counts": got[0].tolist(), "found": reply["found"]})
            return self.programs(second, request, args + got, show)
        return "ok", got

    def differs(self, entry: dict, got, want) -> str | None:
        torch = self.torch
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"{got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}"
        if entry["random"]:
            finite = not got.is_floating_point() or bool(torch.isfinite(got.float()).all())
            return None if finite else "random values are not finite"
        rtol = atol = None
        if MATMUL_LIKE.search(entry["name"]) and (got.is_floating_point() or got.is_complex()):
            rtol, atol = torch.testing._comparison.default_tolerances(got.dtype)
            rtol, atol = rtol * SLACK, atol * SLACK
        try:
            torch.testing.assert_close(got, want.resolve_conj().contiguous(), rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as e:
            bad = ~torch.isclose(got, want, equal_nan=True) if got.dtype != torch.bool else got != want
            where = bad.nonzero()[:3].tolist()
            pairs = [(got[tuple(i)].item(), want[tuple(i)].item()) for i in where]
            lines = [line for line in str(e).splitlines() if line]
            return f"{lines[1] if len(lines) > 1 else lines[0]}; (got, wanted) {pairs}"
        return None


def main() -> int:
    flags = {a for a in sys.argv[1:] if a.startswith("--")}
    if "--device" in flags:
        device_main()
        return 0
    patterns = [a for a in sys.argv[1:] if not a.startswith("--")]
    wanted = re.compile(patterns[0] if patterns else "")
    sys.path.insert(0, str(HERE))
    h = Harness()
    import warnings

    warnings.simplefilter("ignore")
    started, failures, counts, ops = time.time(), [], {"ok": 0, "refused": 0, "FAIL": 0}, 0
    for entry in h.table:
        if not wanted.search(entry["name"]):
            continue
        ops += 1
        why = h.check_schema(entry)
        if why:
            counts["FAIL"] += 1
            failures.append((entry["name"], "schema", why))
        for example in entry["examples"]:
            verdict, why = h.run(entry, example, "--text" in flags)
            counts[verdict] += 1
            if verdict == "FAIL" or (verdict == "refused" and "--refused" in flags):
                failures.append((entry["name"], example, why))
    h.device.close()
    for name, example, why in failures:
        print(f"{name:32} {example:44} {why}")
    print(
        f"{ops} ops, {counts['ok']} ok, {counts['refused']} refused, {counts['FAIL']} failed, "
        f"{time.time() - started:.0f} s"
    )
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
