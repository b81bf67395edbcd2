"""ONNX Runtime, which reports to nobody.

Its official builds send events to their makers, unless they are told not to before they are loaded. So whatever needs
the runtime imports it from here; who wants it to report sets the variable to 0.
"""

import os

TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"

os.environ.setdefault(TELEMETRY_OFF, "1")

import onnxruntime  # noqa: E402, TID251

__all__ = ["TELEMETRY_OFF", "onnxruntime"]
