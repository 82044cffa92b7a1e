"""GPUs that break while a run uses them, by NVML (docs.nvidia.com/deploy/nvml-api), which an
ordinary user may ask: errors of their memory that ECC cannot correct, rows or pages of it that are
to be replaced, XIDs, and GPUs that have gone. What was so before the first look does not count.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any, Callable, Iterator, Optional

from seerd.agent.nvml import Nvml

MACHINE_XIDS = {
    48: "a double bit error of its memory",
    62: "its power management has stopped",
    63: "a row of its memory is to be replaced",
    64: "a row of its memory cannot be replaced",
    74: "an error of its NVLink",
    79: "it has fallen off the bus",
    92: "too many errors of its memory",
    94: "an error of its memory that ended one process",
    95: "an error of its memory that ends every process",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    140: "an error of its memory that was not recovered",
}
"""XIDs that a program cannot cause, shortened from NVIDIA's catalogue
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Others, as 13, 31, 43, 45 and 68,
may be a program's fault.
"""
XID_EVENTS = ctypes.c_ulonglong(8)
"""`nvmlEventTypeXidCriticalError`."""
GONE = {15, 16}
"""`NVML_ERROR_GPU_IS_LOST`, `NVML_ERROR_RESET_REQUIRED`."""
LOST = "it is lost, or must be reset"
UNCORRECTED, VOLATILE = 1, 0


class _XidEvent(ctypes.Structure):
    """`nvmlEventData_t`."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("xid", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class GpuFaults:
    """What has broken of the GPUs of these names, numbers or UUIDs, since the first look."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._nvml: Optional[Nvml] = None
        self._events = ctypes.c_void_p()
        self._before: list[dict[str, int]] = []
        self._faults = [""] * len(names)

    def look(self) -> list[str]:
        """Return what has broken of each GPU; empty: nothing, or it is unknown. For any thread."""
        # OSError, AttributeError: no driver, or one without these functions
        with self._lock, contextlib.suppress(OSError, AttributeError):
            if self._nvml is None:
                self._begin(Nvml(self._names))
            else:
                self._update(self._nvml)
        return list(self._faults)

    def watch(self, report: Callable[[list[str]], Any], look_s: float = 2.0) -> threading.Thread:
        """Call `report` in another thread when a GPU has broken, until it raises `RuntimeError`."""
        thread = threading.Thread(
            target=self._keep_looking, args=(report, look_s), name="gpu-faults", daemon=True
        )
        thread.start()
        return thread

    def _keep_looking(self, report: Callable[[list[str]], Any], look_s: float) -> None:
        before, faults = [""] * len(self._names), self.look()
        while self._nvml is not None:
            if faults != before:
                try:
                    report(faults)
                except RuntimeError:  # the agent's loop has ended
                    return
            time.sleep(look_s)
            before, faults = faults, self.look()

    def _begin(self, nvml: Nvml) -> None:
        self._before = [self._counts(nvml, handle) for handle in nvml.handles]
        nvml.library.nvmlEventSetCreate(ctypes.byref(self._events))
        for handle in nvml.handles:
            if handle is not None:
                nvml.library.nvmlDeviceRegisterEvents(handle, XID_EVENTS, self._events)
        self._nvml = nvml

    def _update(self, nvml: Nvml) -> None:
        devices = [None if handle is None else handle.value for handle in nvml.handles]
        for device, xid in self._xids(nvml):
            if xid in MACHINE_XIDS and device in devices:
                self._note(devices.index(device), f"{MACHINE_XIDS[xid]} (XID {xid})")
        for gpu, handle in enumerate(nvml.handles):
            before = self._before[gpu]
            for what, number in self._counts(nvml, handle).items():
                if number > before.get(what, number):
                    self._note(gpu, what)

    def _note(self, gpu: int, what: str) -> None:
        self._faults[gpu] = self._faults[gpu] or f"GPU {self._names[gpu]} has broken: {what}"

    def _xids(self, nvml: Nvml) -> Iterator[tuple[Optional[int], int]]:
        event = _XidEvent()
        while nvml.library.nvmlEventSetWait_v2(self._events, ctypes.byref(event), 0) == 0:
            yield event.device, event.xid

    def _counts(self, nvml: Nvml, handle: Optional[Any]) -> dict[str, int]:
        """Return what NVML counts of a GPU, without what this GPU does not count."""
        if handle is None:
            return {}
        ask, ref, errors, pages = nvml.library, ctypes.byref, ctypes.c_ulonglong(), ctypes.c_uint()
        rows = [ctypes.c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failed
        asked: list[tuple[int, str, Any]] = [
            (
                ask.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE, ref(errors)),
                "an error of its memory that ECC could not correct",
                errors,
            ),
            (
                ask.nvmlDeviceGetRetiredPagesPendingStatus(handle, ref(pages)),
                "a page of its memory is to be retired",
                pages,
            ),
            (
                ask.nvmlDeviceGetRemappedRows(handle, *map(ref, rows)),
                "a row of its memory is to be replaced",
                rows[2],
            ),
        ]
        counts = {what: number.value for status, what, number in asked if status == 0}
        return {**counts, LOST: int(any(status in GONE for status, _, _ in asked))}
