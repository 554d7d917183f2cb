"""A stand-in for pynvml that fails as NVML and its binding do."""

# ruff: noqa: N802, N803, A002 (the names are those of NVML)

from types import SimpleNamespace

TOTAL = 150754820096


class NVMLError(Exception):
    pass


class NVMLErrorNotFound(NVMLError):
    """The question is understood, and there is nothing to report."""

    value = 6


class NVMLLibraryMismatchError(Exception):
    """As in pynvml no `NVMLError`: raised where the driver does not know a versioned function."""


class FakeNvml:
    """Devices with handles 0, 1, ...; a part of a divided one has the handle (device, part).

    Args:
        refuses: Functions that raise as an unsupported query or a missing permission does.
        mismatched: Functions that raise as with a driver older than the binding.
        lacks: Functions that this version of the binding does not have.
        bits: Why clocks are held down.
        count: Devices.
        parts: Device -> number of its instances (MIG).
    """

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *, refuses=(), mismatched=(), lacks=(), bits=0, count=2, parts=None):
        self.refuses, self.mismatched, self.lacks = set(refuses), set(mismatched), set(lacks)
        self.bits, self.count, self.parts = bits, count, parts or {}
        self.used = {}
        self.pids = [7, 5]
        self.utilised = []
        self.ecc = 0

    def uses(self, pid, percent):
        """A process computed: so much of the multiprocessors' time, later than all reported before."""
        at = 1_700_000_000_000_000 + 100_000 * len(self.utilised)
        self.utilised.append(SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent))

    def __getattribute__(self, name):
        if name.startswith("nvml"):
            for error, names in ((NVMLError, self.refuses), (NVMLLibraryMismatchError, self.mismatched)):
                if name in names:

                    def refuse(*_, error=error):
                        raise error(name)

                    return refuse
            if name in self.lacks:
                raise AttributeError(name)
        return super().__getattribute__(name)

    @staticmethod
    def _whole(device):
        if isinstance(device, tuple):
            raise NVMLError("not supported for a part")
        return device

    def nvmlInit(self):
        return None

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        name = "NVIDIA H200 MIG 1g.18gb" if isinstance(handle, tuple) else "NVIDIA H200"
        return name.encode() if handle else name

    def nvmlDeviceGetUUID(self, handle):
        return f"MIG-{handle[0]}{handle[1]}ef" if isinstance(handle, tuple) else f"GPU-{handle}abc"

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        total = TOTAL // 8 if isinstance(handle, tuple) else TOTAL
        return SimpleNamespace(total=total, used=self.used.get(handle, 1 << 30))

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlSystemGetDriverVersion(self):
        return "580.95"

    def nvmlDeviceGetClockInfo(self, handle, type):
        return {1: 1980, 2: 3201}[type] + self._whole(handle)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 41 + self._whole(handle)

    def nvmlDeviceGetPowerUsage(self, handle):
        return 123456 + self._whole(handle)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000 + self._whole(handle)

    def nvmlDeviceGetTotalEccErrors(self, handle, errorType, counterType):
        return self.ecc + self._whole(handle)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.bits + 0 * self._whole(handle)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle):
        return [SimpleNamespace(pid=9)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=11)]

    def nvmlDeviceGetProcessUtilization(self, handle, timeStamp):
        self._whole(handle)
        found = [sample for sample in self.utilised if sample.timeStamp > timeStamp]
        if not found:
            raise NVMLErrorNotFound("no sample since then")
        return found

    def nvmlDeviceGetMigMode(self, device):
        if device not in self.parts:
            raise NVMLError("not supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if index >= self.parts[device]:
            raise NVMLError("not found")
        return (device, index)


FUNCTIONS = [name for name in vars(FakeNvml) if name.startswith("nvml")]
QUERIES = [
    name
    for name in FUNCTIONS
    if name.startswith("nvmlDeviceGet") and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
]
