"""torch.compile on the device: the results of eager, one plan a graph, nothing compiled twice."""

import copy
import subprocess
import sys

import pytest
import torch
from compiling import close, compiled
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def agree(f, *args, **options):
    """Twice, since the first call records."""
    run = compiled(f, **options)
    for _ in range(2):
        got, want = run(*args), f(*args)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    return got


def device(*shape, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to("tpu").requires_grad_(**options)


def data(*shape):
    return device(*shape, requires_grad=False)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to("tpu")


# ---------------------------------------------------------------- graphs and plans


def test_a_forward_is_one_plan_and_the_second_call_compiles_nothing():
    net, x = mlp(), data(3, 8)
    run = compiled(net, fullgraph=True)
    with torch.no_grad(), torch.tpu.explain() as what:
        first, second = run(x), run(x + 0)
    graphs = [s for s in what.segments if "graph" in s["ended_by"]]
    assert [s["times"] for s in graphs] == [2] and len(graphs[0]["ops"]) >= 3
    close(first, net(x))
    close(second, first)
    before = torch.tpu.compile_count()
    with torch.no_grad():
        run(x)
    torch.tpu.synchronize()
    assert torch.tpu.compile_count() == before


def test_explain_tells_lines_divisions_and_sizes():
    def net(x):
        y = x.sin()
        y = y * torch.linalg.eigvals(y.view(2, 2)).real.sum()  # no lowering
        return y.cos()

    x = data(4)
    run = compiled(net, dynamic=False)
    run(x)  # recorded before anybody asks
    with torch.tpu.explain() as what:
        run(x)
    first = net.__code__.co_firstlineno + 1
    here = [(op, line) for s in what.segments for op, line in s["ops"] if "test_compile.py" in line]
    lines = {op: int(line.rsplit(":", 1)[1]) - first for op, line in here}
    assert lines["aten::sin"] == 0 and lines["aten::cos"] == 2
    (graph,) = what.graphs
    assert graph["plans"] == 2 and graph["calls"] == 1 and graph["line"].endswith(f"test_compile.py:{first}")
    ((op, line, why),) = graph["divided"]
    assert op == "aten.linalg_eig.default" and line.endswith(f":{first + 1}") and "lowering" in why
    assert f"on the host: {op} {line}" in str(what)

    torch._dynamo.reset()
    rows, order = compiled(lambda x: x.sin().sum(), dynamic=True), compiled(lambda x: x.roll(1), dynamic=True)
    with torch.tpu.explain() as what:
        for n in (5, 7, 9):
            rows(data(n)), order(data(n))
    sized, exact = what.graphs
    assert [list(room.values()) for room in sized["rooms"]] == [[(7, 8)], [(9, 16)]] and not sized["exact"]
    assert not exact["rooms"] and "roll" in exact["exact"][0] and exact["exact"][0] in str(what)


def test_plain_compile_takes_device_graphs_and_leaves_the_cpu_to_inductor(monkeypatch):
    x = data(4)
    with torch.tpu.explain() as what:
        close(torch.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert any("graph" in s["ended_by"] for s in what.segments)
    met = []
    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", lambda graph, inputs, **_: met.append(1) or graph)
    torch.compile(lambda x: x.cos() + 1)(torch.ones(3))
    assert met == [1]
    torch.compile(lambda x: x.cos() + 1)(x)
    assert met == [1]


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune"])
def test_modes_are_accepted(mode):
    agree(lambda x: x * 2, data(3), mode=mode)


@pytest.mark.parametrize("options", [{"mode": "fastest"}, {"options": {"tiling": 3}}])
def test_unknown_options_are_named(options):
    with pytest.raises(Exception, match=r"fastest|tiling"):
        compiled(lambda x: x * 2, **options)(data(3))


def test_training_agrees_with_eager():
    mine, theirs = mlp(), mlp()
    ours, others = (torch.optim.AdamW(n.parameters(), lr=1e-2) for n in (mine, theirs))
    run, x = compiled(mine), data(5, 8)
    for k in range(6):
        for call, optimizer in ((run, ours), (theirs, others)):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
        if k == 2:
            torch.tpu.synchronize()
            before = torch.tpu.compile_count()
    torch.tpu.synchronize()
    assert torch.tpu.compile_count() == before
    for p, q in zip(mine.parameters(), theirs.parameters()):
        close(p, q, rtol=1e-4, atol=1e-5)


OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW capturable": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), capturable=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps(name):
    mine, theirs = mlp(), mlp()
    ours, others = OPTIMIZERS[name](mine.parameters()), OPTIMIZERS[name](theirs.parameters())
    step, x = compiled(lambda: ours.step()), data(5, 8)
    for _ in range(4):
        for net in (mine, theirs):
            net.zero_grad()
            net(x).square().mean().backward()
        step()
        others.step()
    for p, q in zip(mine.parameters(), theirs.parameters()):
        close(p, q, rtol=1e-4, atol=1e-5)


def test_a_whole_train_step():
    mine, theirs = mlp(), mlp()
    ours, others = (torch.optim.SGD(n.parameters(), lr=0.1) for n in (mine, theirs))

    def step(net, optimizer, x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run, x = compiled(step), data(5, 8)
    for _ in range(3):
        close(run(mine, ours, x), step(theirs, others, x), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- what graphs change


def test_inputs_are_written_and_buffers_taken_over():
    def put(cache, row, k):
        cache[:, k] = row
        return cache.sum()

    mine, theirs, row, run = torch.zeros(4, 6).to("tpu"), torch.zeros(4, 6).to("tpu"), data(4), compiled(put)
    for k in range(5):
        close(run(mine, row, k), put(theirs, row, k))
        close(mine, theirs)
    with torch.tpu.explain() as what:
        run(mine, row, 3)
    assert sum(s.get("donated", 0) for s in what.segments) >= mine.nbytes


def test_batch_norm_statistics():
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to("tpu")
    theirs, x = copy.deepcopy(mine), data(2, 3, 6, 6)
    run = compiled(mine)
    for _ in range(3):
        run(x).sum().backward()
        theirs(x).sum().backward()
    close(mine[1].running_var, theirs[1].running_var)
    close(mine[1].num_batches_tracked, theirs[1].num_batches_tracked)
    close(mine[0].weight.grad, theirs[0].weight.grad, rtol=1e-4, atol=1e-4)


def test_outputs_that_are_views_and_inputs():
    x = data(4, 5)

    def f(x):
        y = x * 2
        return x.t(), y.view(-1)[1:], y, x

    for got, want in zip(compiled(f)(x), f(x)):
        close(got, want)
        assert got.stride() == want.stride()
    t, flat, y, same = compiled(f)(x)
    assert same is x and t.data_ptr() == x.data_ptr() and flat.untyped_storage()._cdata == y.untyped_storage()._cdata


def test_memory_format_is_kept():
    net = nn.Conv2d(3, 8, 3).to("tpu", memory_format=torch.channels_last)
    x = data(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert agree(net, x).stride() == net(x).stride()


def test_conjugates_and_complex_numbers():
    agree(lambda x: torch.fft.rfft(x).conj().abs(), data(8))
    close(compiled(lambda x: torch.fft.rfft(x).conj())(data(8)).resolve_conj(), torch.fft.rfft(data(8)).conj())


# ---------------------------------------------------------------- random numbers


def test_dropout_draws_what_eager_draws():
    x = torch.ones(16, 16, device="tpu")

    def f(x):
        return F.dropout(x, 0.3) + F.dropout(x * 2, 0.5) + torch.rand_like(x)

    def both(f):
        torch.manual_seed(3)
        return f(x).cpu(), f(x).cpu(), torch.rand(3, device="tpu").cpu()

    run = compiled(f)
    run(x)  # recording draws nothing
    for got, want in zip(both(run), both(f)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("how", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_a_checkpointed_dropout_is_drawn_again_the_same(how):
    x = torch.ones(64, device="tpu", requires_grad=True)
    y = how(lambda x: checkpoint(lambda x: F.dropout(x.exp().log(), 0.5), x, use_reentrant=False))(x)
    y.sum().backward()
    close(x.grad, y)
    assert 0 < int((y == 0).sum()) < 64


def test_checkpointed_dropouts_divide_no_graph():
    def net(x):
        for k in range(3):
            x = checkpoint(lambda x, p=0.2 + k / 10: F.dropout(x.sigmoid(), p) * x.sin(), x, use_reentrant=False)
        return x

    run = compiled(net, fullgraph=True)
    for k in range(3):
        results = []
        for call in (run, net):
            torch.manual_seed(k)
            x = device(64)
            with torch.tpu.explain() as what:
                y = call(x)
                # what is drawn in between moves the generator, which the backward must neither see nor move
                between = torch.rand(3, device="tpu")
                y.sum().backward()
            results.append((y.detach(), x.grad, between, torch.rand(3, device="tpu")))
            if call is run:
                assert [(g["plans"], g["divided"], g["calls"]) for g in what.graphs] == [(1, [], 1)] * 2
        for got, want in zip(*results):
            close(got, want)


def test_numbers_drawn_beside_those_drawn_again_divide_the_graph():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 + torch.rand_like(g) * 0

    def net(x):
        return Noisy.apply(checkpoint(lambda x: F.dropout(x.exp().log(), 0.5), x, use_reentrant=False))

    x = torch.ones(64, device="tpu", requires_grad=True)
    y = compiled(net)(x)
    y.sum().backward()
    close(x.grad, y)


# ---------------------------------------------------------------- the rest of PyTorch


def test_autocast():
    net, x = mlp(), data(4, 8)

    def inside(x):
        with torch.autocast("tpu", dtype=torch.bfloat16):
            return net(x)

    assert compiled(inside)(x).dtype == torch.bfloat16
    close(compiled(inside)(x), inside(x))
    with torch.autocast("tpu", dtype=torch.bfloat16):
        close(compiled(net)(x), net(x))


def test_inference_mode():
    net = mlp()
    with torch.inference_mode():
        agree(net, data(4, 8))


def test_attention_and_recurrent_layers():
    layer, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0).to("tpu"), data(2, 6, 16)
    agree(layer, x)
    compiled(layer)(x).sum().backward()
    assert layer.linear1.weight.grad is not None
    lstm = nn.LSTM(4, 8, 2).to("tpu")
    agree(lambda x: lstm(x)[0], data(5, 2, 4))


def test_the_device_module_inside_a_graph():
    @torch.compile(fullgraph=True)
    def constants(x):
        return x + torch.tpu.device_count() if torch.tpu.is_available() and torch.tpu.current_device() == 0 else x

    assert constants(torch.zeros(2, device="tpu")).tolist() == [1, 1]

    @torch.compile
    def breaks(x):
        state = torch.tpu.get_rng_state()
        first = F.dropout(x)
        torch.tpu.set_rng_state(state)
        torch.tpu.synchronize()
        return first, F.dropout(x), torch.tpu.memory_allocated()

    first, second, bytes_ = breaks(torch.ones(64, device="tpu"))
    assert torch.equal(first.cpu(), second.cpu())
    assert 0 < first.sum().item() < 128 and bytes_ > 0


def test_functional_transforms():
    each = torch.func.vmap(torch.func.grad(lambda w, x: (w * x).sin().sum()), in_dims=(None, 0))
    agree(each, data(3), data(5, 3))
    agree(lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1], data(3))


def test_custom_operators_run_as_they_stand():
    @torch.library.custom_op("tpu_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x.cpu().add(x.cpu()).to(x.device)  # nothing that a plan could hold

    twice.register_fake(torch.empty_like)
    agree(lambda x: twice(x.sin()) + 1, data(4), fullgraph=True)


def test_ops_without_a_lowering_split_the_graph():
    x = data(5, 5)
    torch.manual_seed(0)
    with torch.tpu.explain() as what:
        got = compiled(lambda x: torch.linalg.eigvals(x.sin()).abs().sum() + x.sum(), fullgraph=True)(x)
    close(got, torch.linalg.eigvals(x.cpu().sin()).abs().sum() + x.cpu().sum(), rtol=1e-4, atol=1e-4)
    assert sum("graph" in s["ended_by"] for s in what.segments) == 2
    assert "aten::linalg_eig" in " ".join(what.fallbacks) or "aten::_linalg_eigvals" in what.fallbacks


def test_sizes_that_depend_on_data():
    x = data(20)
    agree(lambda x: x[x > 0] * 2, x)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        agree(lambda x: x[x > 0] * 2, x, fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        agree(lambda x: x * x.sum().item(), x, fullgraph=True)


def test_a_mistake_inside_a_graph_leaves_the_process_whole():
    run = compiled(lambda x, i: x[i] + 1)
    x = data(4)
    close(run(x, torch.tensor([1, 2], device="tpu")), x[1:3] + 1)
    bad = run(x, torch.tensor([1, 9], device="tpu"))
    with pytest.raises(IndexError):
        bad.cpu()
    close(run(x, torch.tensor([0, 3], device="tpu")), x[[0, 3]] + 1)


def test_fused_eager_around_a_graph():
    run, x = compiled(lambda x: x.exp().sum()), data(6)
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        close(run(x * 2 + 1) * 3, (x * 2 + 1).exp().sum() * 3)


def test_another_process_compiles_nothing_and_ends_in_peace(tmp_path):
    code = (
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "net = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to('tpu'), backend='tpu')\n"
        "net(torch.ones(2, 8, device='tpu')).sum().backward()\n"
        "torch.tpu.synchronize()\nprint(torch.tpu.compile_count())"
    )
    env = {**__import__("os").environ, "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    done = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True) for _ in range(2)]
    assert [d.returncode for d in done] == [0, 0], [d.stderr[-2000:] for d in done]
    assert int(done[0].stdout) > 0 and int(done[1].stdout) == 0


def test_a_gradient_that_is_all_zeros():
    x = torch.randn(5, device="tpu", requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(torch.sgn)(x).sum(), x)
    assert gradient.tolist() == [0] * 5


def test_a_graph_that_cannot_end_leaves_the_next_one_whole(monkeypatch):
    from torch_tpu._compile import pieces

    x = torch.ones(3, device="tpu")
    with monkeypatch.context() as patch:
        patch.setattr(pieces, "stored", lambda _: torch.ones(3))  # a result that is not the device's
        with pytest.raises(RuntimeError):
            compiled(lambda x: x + 1)(x)
    assert compiled(lambda x: x + 2)(x).tolist() == [3, 3, 3]
