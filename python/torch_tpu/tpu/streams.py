"""Streams and events. The device runs one queue in order; streams name it, events are points in it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_tpu.tpu._index import DeviceLike, check

__all__ = ["Event", "Stream", "current_stream", "default_stream", "set_stream", "stream"]


class Stream(torch.Stream):
    def __new__(cls, device: DeviceLike = None, priority: int = 0, **ids: int) -> "Stream":
        if ids:  # stream_id=, device_index=, device_type=: an existing stream
            return super().__new__(cls, **ids)
        return super().__new__(cls, device=torch.device("tpu", check(device)), priority=priority)

    def record_event(self, event: "torch.Event | None" = None) -> "torch.Event":
        event = Event() if event is None else event
        event.record(self)
        return event


class Event(torch.Event):
    # PyTorch takes the time between two plain torch.Events only, not between subclasses: each timing event has one.
    _clock: torch.Event | None = None

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        options = {"enable_timing": enable_timing, "blocking": blocking, "interprocess": interprocess}
        event = super().__new__(cls, device="tpu", **options)
        if enable_timing:
            event._clock = torch.Event("tpu", enable_timing=True)
        return event

    def record(self, stream: torch.Stream | None = None) -> "Event":
        stream = current_stream() if stream is None else stream
        if self._clock is not None:  # before the event itself: an event that was reached has a time
            self._clock.record(stream)
        super().record(stream)
        return self

    def elapsed_time(self, other: torch.Event) -> float:
        """Milliseconds from this event to `other`; both recorded with timing and reached."""
        start, end = (getattr(event, "_clock", None) or event for event in (self, other))
        return start.elapsed_time(end)

    def wait(self, stream: torch.Stream | None = None) -> None:
        super().wait(current_stream() if stream is None else stream)


def current_stream(device: DeviceLike = None) -> Stream:
    return _ours(torch.accelerator.current_stream(check(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    now = current_stream(device)
    return Stream(stream_id=0, device_index=now.device_index, device_type=now.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    if stream is not None:
        torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[torch.Stream | None]:
    """Makes `stream` current for a ``with`` block; None changes nothing."""
    before = current_stream()
    set_stream(stream)
    try:
        yield stream
    finally:
        set_stream(before)


def _ours(stream: torch.Stream) -> Stream:
    ids = {"stream_id": stream.stream_id, "device_index": stream.device_index, "device_type": stream.device_type}
    return Stream(**ids)
