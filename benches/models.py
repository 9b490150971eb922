"""The models that benchmarks run: a GPT, a residual network, a multilayer perceptron; and their training steps."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, d = x.shape
        parts = self.mix(self.before(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self, words: int = 512, width: int = 256, layers: int = 4, length: int = 128):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))))


class Residual(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int):
        super().__init__()
        self.one = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        self.short = None
        if stride > 1 or narrow != wide:
            self.short, self.norm3 = nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)

    def forward(self, x):
        y = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        return F.relu(y + (x if self.short is None else self.norm3(self.short(x))))


class ResNet(nn.Module):
    """ResNet-18 with a 3 × 3 stem, as one uses for small images."""

    WIDTHS = (64, 128, 256, 512)

    def __init__(self, classes: int = 10):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        blocks, narrow = [], 64
        for k, wide in enumerate(self.WIDTHS):
            blocks += [Residual(narrow, wide, 1 if k == 0 else 2), Residual(wide, wide, 1)]
            narrow = wide
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(narrow, classes)

    def forward(self, x):
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))


def case(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model, its input and its targets, on the CPU and the same each time."""
    torch.manual_seed(0)
    if name == "gpt":
        tokens = torch.randint(512, (8, 129))
        return GPT(), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if name == "resnet":
        return ResNet(), torch.randn(32, 3, 64, 64), torch.randint(10, (32,))
    return mlp(), torch.randn(128, 784), torch.randint(10, (128,))


def training(name: str, device: str, wrap: Callable = lambda f: f) -> Callable[[], torch.Tensor]:
    """A step that gives its loss: forward, backward and AdamW; of ``resnet`` forward and backward only."""
    model, x, y = case(name)
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if name != "resnet" else None

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        if optimizer:
            optimizer.step()
        return loss.detach()

    run = wrap(step)
    return lambda: run(x, y)
