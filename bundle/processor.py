"""What the processor at hand can do, as the kernel tells it."""

from pathlib import Path


def processor_flags() -> frozenset[str]:
    """Instruction-set flags of the first processor, such as avx512_vnni; empty where the kernel lists none."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return frozenset()
    for line in info.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()


def has_bfloat16() -> bool:
    """Whether matrix products in bfloat16 run in hardware, and so are faster than in float32."""
    return bool(processor_flags() & {"avx512_bf16", "amx_bf16", "bf16"})
