"""A pytest plugin: ``pytest --tpu-check v6e:1x1`` fails a test if one of its programs does not compile for that TPU, or
does not fit.

A package of its own, because pytest imports the plugins of every installed package: without the option, this one
imports neither torch nor torch_tpu.
"""

import pytest

WATCH = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tpu")
    group.addoption("--tpu-check", metavar="TOPOLOGY", help="compile every program for this TPU too, such as v6e:1x1")


def pytest_configure(config: pytest.Config) -> None:
    if topology := config.getoption("--tpu-check"):
        from torch_tpu._check.compiler import CheckError
        from torch_tpu._check.watch import Watch

        try:
            config.stash[WATCH] = Watch(topology)
        except (ValueError, CheckError) as error:
            raise pytest.UsageError(f"--tpu-check: {error}") from None


def pytest_unconfigure(config: pytest.Config) -> None:
    if watch := config.stash.get(WATCH, None):
        watch.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    watch = item.config.stash.get(WATCH, None)
    if watch is None:
        return (yield)
    import torch

    with torch.tpu.explain() as what:
        result = yield
    watch.drain()
    met = {s.get("program") for s in what.segments}
    bad = [r for key, r in watch.reports.items() if key in met and not r.fits]
    if bad:
        pytest.fail("\n".join(f"{r.topology}: {_why(r)}" for r in bad), pytrace=False)
    return result


def _why(r) -> str:
    if r.excess_bytes:
        return f"{r.name} needs {r.peak_memory_bytes:,} bytes of {r.memory_limit_bytes:,}"
    return f"{r.name} does not compile: {r.error}"
