"""What the guides claim, run: each Python block of a document in a namespace of its own, all in one process."""

import re

import pytest
from conftest import ROOT

GUIDES = ["migrating-from-cuda", "migrating-from-torch-xla", "ecosystem"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = """
import sys, traceback
for line, code in eval(sys.stdin.read()):
    try:
        exec(compile("\\n" * line + code, sys.argv[1], "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        sys.exit(f"{sys.argv[1]}, the block at line {line + 1}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_every_block_of_a_guide_holds(guide, run_python, tmp_path):
    text = (ROOT / f"docs/{guide}.md").read_text()
    blocks = [(text[: found.start(1)].count("\n"), found[1]) for found in BLOCK.finditer(text)]
    assert len(blocks) >= 5
    code = RUN.replace("sys.stdin.read()", repr(repr(blocks)))
    done = run_python(code, f"docs/{guide}.md", timeout=600, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
