"""torch.compile and export of control flow: one plan, whichever way it goes, with the results of the CPU."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch_tpu import aot


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def data(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def on(where, args, grad=False):
    return [
        [t.to(where) for t in x]
        if isinstance(x, list)
        else x.detach().to(where).requires_grad_(grad and x.is_floating_point())
        for x in args
    ]


def compiled(f, **options):
    return torch.compile(f, backend="tpu", fullgraph=True, **options)


def agree(f, *args, plans=1, run=None, want=None):
    """The results of the CPU, from so many plans at each of two calls, and nothing beside them."""
    run = compiled(f) if run is None else run
    want = f(*on("cpu", args)) if want is None else want
    device = on("tpu", args)
    for _ in range(2):
        with torch.tpu.explain() as what:
            got = run(*device)
        torch.testing.assert_close(torch.utils._pytree.tree_map(lambda t: t.cpu(), got), want)
        assert [s["ended_by"] for s in what.segments] == [{"graph": 1}] * plans, str(what)
    return run


def agree_with_backward(f, *args):
    """Forward and backward, a plan each."""
    run = compiled(f)
    for _ in range(2):
        host, device = on("cpu", args, grad=True), on("tpu", args, grad=True)
        want = f(*host)
        torch.autograd.backward(want, torch.ones_like(want))
        one = torch.ones_like(want).to("tpu")
        with torch.tpu.explain() as what:
            got = run(*device)
            torch.autograd.backward(got, one)
        graphs = [s for s in what.segments if "graph" in s["ended_by"]]
        assert sum(s["times"] for s in graphs) == 2, str(what)
        torch.testing.assert_close(got.cpu(), want)
        for x, y in zip(device, host):
            if y.grad is not None:
                torch.testing.assert_close(x.grad.cpu(), y.grad)


def branch(p, x, w):
    return torch.cond(p, lambda x, w: (x @ w).sin(), lambda x, w: (x.cos() @ w.t()) * 2, (x, w)) + 1


YES, NO = torch.tensor(True), torch.tensor(False)


# ---------------------------------------------------------------- branches


def test_both_branches_are_in_one_plan():
    run = agree(branch, YES, data(3, 4), data(4, 4))
    torch.tpu.synchronize()
    before = torch.tpu.compile_count()
    agree(branch, NO, data(3, 4), data(4, 4), run=run)
    assert torch.tpu.compile_count() == before


@pytest.mark.parametrize("p", [YES, NO])
def test_a_branch_is_differentiated_as_it_went(p):
    agree_with_backward(branch, p, data(3, 4), data(4, 4))


def test_a_python_bool_chooses_while_tracing():
    for p in (True, False):
        agree(lambda x, p=p: torch.cond(p, lambda x: x.sin(), lambda x: x.cos(), (x,)), data(3))


def test_branches_in_branches():
    def f(p, x):
        deep = lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))  # noqa: E731
        return torch.cond(p, deep, lambda x: x * 2, (x,))

    run = agree(f, YES, data(5))
    agree(f, YES, -data(5), run=run)
    agree(f, NO, data(5), run=run)


def test_branches_of_other_strides_and_several_results():
    def f(p, x):
        a, b = torch.cond(p, lambda x: (x.t().sin(), x.sum(0)), lambda x: (x.t().cos(), x[1] + 0), (x,))
        return a.t().reshape(-1), b

    run = agree(f, YES, data(3, 4))
    agree(f, NO, data(3, 4), run=run)


def test_a_branch_that_is_taken_checks_its_indices():
    def f(p, x, i):
        return torch.cond(p, lambda x, i: x[i], lambda x, i: x[i % 3] * 2, (x, i))

    good, bad = torch.tensor([0, 2]), torch.tensor([7, 1])
    run = agree(f, YES, data(3, 4), good)
    agree(f, NO, data(3, 4), bad, run=run)
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3"):
        run(*on("tpu", (YES, data(3, 4), bad))).cpu()
    agree(f, YES, data(3, 4), good, run=run)


def test_branches_that_differ_in_numbers_or_operands_only_are_told_apart():
    for f in (lambda x, y: x - y * 2, lambda x, y: x - y * 3, lambda x, y: y - x * 2):
        agree(lambda p, x, y, f=f: torch.cond(p, f, lambda x, y: x + y, (x, y)), YES, data(3), data(3) + 1)
        torch._dynamo.reset()


def test_a_predicate_on_the_host():
    run = compiled(branch)
    for p in (YES, NO):
        x, w = data(3, 4), data(4, 4)
        torch.testing.assert_close(run(p, x.to("tpu"), w.to("tpu")).cpu(), branch(p, x, w))


def test_dynamic_sizes_have_a_plan_each():
    def f(p, x):
        return torch.cond(p, lambda x: x.sin() * x.shape[0], lambda x: x.cos() + x.sum(), (x,))

    run = compiled(f, dynamic=True)
    for p in (YES, NO):
        for n in (3, 5, 6):
            agree(f, p, data(n), run=run)


# ---------------------------------------------------------------- loops


def test_a_loop_is_one_plan_for_any_number_of_turns():
    def f(n, x):
        return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 2 + i), (torch.zeros_like(n), x))

    run = agree(f, torch.tensor(3), data(4))
    before = torch.tpu.compile_count()
    for n in (0, 1, 20):
        agree(f, torch.tensor(n), data(4), run=run)
    torch.tpu.synchronize()
    assert torch.tpu.compile_count() == before


def test_a_branch_in_a_loop():
    def turn(i, x):
        return i + 1, torch.cond(i % 2 == 0, lambda x: x + 1, lambda x: x * 2, (x,))

    agree(lambda i, x: while_loop(lambda i, x: i < 5, turn, (i, x)), torch.tensor(0), data(4))


class Decoder(nn.Module):
    """Greedy decoding: a token at a time until one that ends, from a recurrent state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.cell, self.head = nn.Embedding(11, 16), nn.GRUCell(16, 16), nn.Linear(16, 11)

    def forward(self, state, tokens):
        def goes_on(i, state, tokens):
            return (i < tokens.shape[0] - 1) & (tokens.gather(0, i[None])[0] != 3)

        def turn(i, state, tokens):
            state = self.cell(self.embed(tokens.gather(0, i[None])), state)
            token = self.head(state).argmax(-1)
            return i + 1, state, tokens.scatter(0, i[None] + 1, token)

        start = torch.zeros((), dtype=torch.int64, device=state.device)
        return while_loop(goes_on, turn, (start, state, tokens))


def test_a_decoding_loop():
    model, args = Decoder().requires_grad_(False), (data(1, 16), torch.ones(9, dtype=torch.int64))
    want = model(*args)
    agree(model, *args, run=compiled(model.to("tpu")), want=want)


def test_a_bad_index_in_the_condition_of_a_loop_is_told():
    def f(i, x):
        return while_loop(lambda i, x: x[i][0] > 0, lambda i, x: (i + 1, x * 2), (i, x))

    agree(f, torch.tensor([0]), torch.tensor([1.0, 2.0, -1.0, 4.0]))
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(f)(*on("tpu", (torch.tensor([0]), torch.ones(4))))[1].cpu()


def test_a_loop_that_meets_a_bad_index_says_so_and_ends():
    def f(i, x, k):
        return while_loop(lambda i, x: x.sum() < 1e9, lambda i, x: (i + 1, x + x[k + i].abs() + 1), (i, x))[1]

    with pytest.raises(IndexError, match="out of bounds"):
        compiled(f)(*on("tpu", (torch.tensor(0), data(3, 4), torch.tensor([0, 1, 2])))).cpu()


# ---------------------------------------------------------------- scans


def recur(x, w):
    return scan(lambda c, x: (torch.tanh(c @ w + x), c * x), torch.zeros(4, device=x.device), x)


def test_a_scan():
    agree(recur, data(6, 4), data(4, 4))


def test_a_scan_forward_and_backward():
    agree_with_backward(lambda x, w: sum(t.square().sum() for t in recur(x, w)), data(6, 4), data(4, 4))


def test_a_scan_along_another_dimension_backwards_with_mixed_dtypes():
    def f(x):
        start = torch.zeros(3, dtype=torch.bool, device=x.device)
        return scan(lambda c, x: (c | (x > 1), c.float() + x), start, x, dim=1, reverse=True)

    agree(f, data(3, 5))


def test_a_map_forward_and_backward():
    agree(lambda x, w: map_over(lambda r, w: (r @ w).sin(), x, w), data(3, 4), data(4, 4))
    agree_with_backward(lambda x, w: map_over(lambda r, w: (r @ w).sin(), x, w), data(3, 4), data(4, 4))


@pytest.mark.parametrize("mode", ["pointwise", "generic"])
def test_an_associative_scan(mode):
    agree(lambda x: associative_scan(torch.mul, x, 0, combine_mode=mode), data(7, 3), want=data(7, 3).cumprod(0))


# ---------------------------------------------------------------- what a plan cannot hold


def on_the_host(f, *args, reason):
    host = f(*on("cpu", args))
    with torch.tpu.explain() as what:
        got = compiled(f)(*on("tpu", args))
    torch.testing.assert_close(got.cpu(), host)
    (graph,) = what.graphs
    ((op, line, why),) = graph["divided"]
    assert op in ("cond", "while_loop") and "test_control_flow.py:" in line and reason in why and reason in str(what)


def test_a_branch_that_draws_runs_on_the_host():
    def f(p, x):
        return torch.cond(p, lambda x: torch.rand_like(x) * 0 + x, lambda x: x.cos(), (x,)).sin()

    on_the_host(f, YES, data(4), reason="draws random numbers")


def test_a_loop_that_counts_on_the_host_runs_there():
    def f(x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + i), (0, x))[1].sin()

    on_the_host(f, data(4), reason="carries numbers of the host")


# ---------------------------------------------------------------- export


def test_exported_programs_hold_branches_and_loops(tmp_path):
    class Both(nn.Module):
        def forward(self, p, x):
            x = torch.cond(p, lambda x: x.sin(), lambda x: x.cos(), (x,))
            return while_loop(lambda x: x.sum() < 100, lambda x: (x.abs() * 2 + 1,), (x,))[0]

    exported = torch.export.export(Both(), (YES, data(4)))
    text = aot.stablehlo(exported)
    assert "stablehlo.if" in text and "stablehlo.while" in text
    aot.save(tmp_path / "both", exported)
    loaded = aot.load(tmp_path / "both")
    for p in (YES, NO):
        torch.testing.assert_close(loaded(*on("tpu", (p, data(4)))).cpu(), Both()(p, data(4)))
