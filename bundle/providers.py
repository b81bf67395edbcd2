"""Names of ONNX Runtime's execution providers; needs no runtime."""

from typing import Literal

Provider = Literal["cpu", "cuda"]

PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
