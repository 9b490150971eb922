"""The process that libtpu lives in: requests on standard input, answers on standard output, JSON by the line.

libtpu writes to both streams as it likes, so the answers have a descriptor of their own; and it ends its process on
some programs, which costs that program only.
"""

import os
import sys


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from torch_tpu import _C

    for line in sys.stdin:
        answers.write(_C.info("topology:" + line.strip()) + "\n")
        answers.flush()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
