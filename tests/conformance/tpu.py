"""Compiles every example of the op table with the real TPU compiler, for chips that are not here.

    python tests/conformance/tpu.py [--match REGEX] [--topologies v5e:1x1,v6e:1x1,tpu7x:2x2x1] [--out FILE]

Needs `pip install libtpu` and no TPU. Programs are compiled many at a time, as functions of one module: what fails is
halved until the example stands alone. The compiler runs in a child process, because some programs abort it. The result
is `tpu.json`: the examples, and for each topology what was said about those that do not compile. Programs met before
(`target/tpu-programs.json`) are not compiled again.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULT = HERE / "tpu.json"
KNOWN = ROOT / "target/tpu-programs.json"
TOPOLOGIES = ("v5e:1x1", "v6e:1x1", "tpu7x:2x2x1")
BATCH = 32
MAIN = re.compile(r"func\.func public @main\((.*?)\) -> \((.*?)\) \{\n", re.S)

Compile = Callable[[str], str | None]  # None if the program compiles, else why not


def together(programs: list[str]) -> str:
    """One module whose main calls each of them."""
    functions, calls, takes, gives = [], [], [], []
    for k, text in enumerate(programs):
        found = MAIN.search(text)
        types = [p.split(":", 1)[1].strip() for p in split(found[1])]
        results = split(found[2])
        body = text[found.start() : text.rindex("}")]
        functions.append(body.replace("func.func public @main", f"func.func private @f{k}", 1))
        names = [f"%a{len(takes) + i}" for i in range(len(types))]
        takes += types
        count = f":{len(results)}" if len(results) > 1 else ""
        calls.append(
            f"    %c{k}{count} = func.call @f{k}({', '.join(names)}) : ({', '.join(types)}) -> ({', '.join(results)})"
        )
        gives += [(f"%c{k}" + (f"#{i}" if count else ""), ty) for i, ty in enumerate(results)]
    parameters = ", ".join(f"%a{i}: {ty}" for i, ty in enumerate(takes))
    types = ", ".join(ty for _, ty in gives)
    main = (
        f"  func.func public @main({parameters}) -> ({types}) {{\n"
        + "\n".join(calls)
        + f"\n    func.return {', '.join(v for v, _ in gives)} : {types}\n  }}\n"
    )
    return "module @m {\n" + main + "".join(functions) + "}\n"


def split(text: str) -> list[str]:
    """At commas outside brackets; attributes in braces are dropped."""
    parts, depth, word = [], 0, ""
    for c in text:
        depth += (c in "<({[") - (c in ">)}]")
        if c == "," and depth == 0:
            parts.append(word)
            word = ""
        else:
            word += c
    parts += [word] if word.strip() else []
    return [re.sub(r"\s*\{.*\}", "", p).strip() for p in parts]


def failures(compile_one: Compile, programs: list[tuple[str, str]]) -> dict[str, str]:
    """Of these (name, program), those that do not compile, with the compiler's words."""
    if not programs:
        return {}
    why = compile_one(programs[0][1] if len(programs) == 1 else together([text for _, text in programs]))
    if why is None:
        return {}
    if len(programs) == 1:
        return {programs[0][0]: why[:300]}
    middle = len(programs) // 2
    return failures(compile_one, programs[:middle]) | failures(compile_one, programs[middle:])


def programs(match: str) -> list[tuple[str, str]]:
    """(op and example, StableHLO) of every example that has a lowering."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    sys.path.insert(0, str(HERE.parent))
    import warnings

    from op_harness import Harness

    warnings.simplefilter("ignore")
    harness, found = Harness(), []
    for entry in harness.table:
        if re.search(match, entry["name"]):
            for example in entry["examples"]:
                reply, _, _, request = harness.lowered(entry, example)
                texts = [reply.get("text")]
                if counting := reply.get("found"):  # the second program of a call whose results' sizes are data
                    counts = [3] * counting[0]["dims"][0]
                    texts.append(harness.lower({**request, "counts": counts, "found": counting}).get("text"))
                for k, text in enumerate(texts):
                    if text and MAIN.search(text)[2].strip():
                        found.append((f"{entry['name']} {example}" + " (counted)" * k, text))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="a regular expression that the op's name must match")
    parser.add_argument("--topologies", default=",".join(TOPOLOGIES))
    parser.add_argument("--libtpu", help="the library; that of the installed package by default")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the result is kept")
    options = parser.parse_args()
    if options.libtpu:
        os.environ["TORCH_TPU_CHECK_LIBRARY"] = options.libtpu
    todo = programs(options.match)
    from torch_tpu._check.compiler import CheckError, Compiler

    result = {"examples": sorted(name for name, _ in todo), "failed": {}}
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    names = {name: hashlib.sha256(text.encode()).hexdigest()[:20] for name, text in todo}
    for topology in options.topologies.split(","):
        start, met = time.monotonic(), known.setdefault(topology, {})
        try:
            compiler = Compiler(topology)
        except CheckError as error:
            print(f"nothing was compiled for a TPU: {error}")
            return 0

        def compile_one(text: str, compiler: Compiler = compiler) -> str | None:
            return compiler.compile(text).get("error")

        new = list({names[name]: text for name, text in todo if names[name] not in met}.items())
        for k in range(0, len(new), BATCH):
            failed = failures(compile_one, new[k : k + BATCH])
            met.update({name: failed.get(name, "") for name, _ in new[k : k + BATCH]})
            KNOWN.write_text(json.dumps(known))
            if sys.stderr.isatty():
                print(f"\r{topology} {k}/{len(new)} ", end="", file=sys.stderr)
        compiler.close()
        failed = {name: met[names[name]] for name, _ in todo if met[names[name]]}
        result["failed"][topology] = failed
        seconds = time.monotonic() - start
        print(f"{topology}: {len(todo) - len(failed)} of {len(todo)} examples compile ({seconds:.0f} s)", flush=True)
        for name, why in failed.items():
            print(f"  {name}: {why}", flush=True)
    options.out.write_text(json.dumps(result, indent=0, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
