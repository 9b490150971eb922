"""What the tests of torch.compile share."""

import torch


def compiled(f, **options):
    return torch.compile(f, backend="tpu", **options)


def close(got, want, **tolerance):
    torch.testing.assert_close(got.cpu(), want.cpu(), **tolerance)
