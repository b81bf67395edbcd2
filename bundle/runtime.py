"""ONNX Runtime with its telemetry off.

Its official builds send events to their vendor, unless the environment says otherwise before they are loaded. All code
therefore imports the runtime from here. To turn telemetry on, set the variable to 0.
"""

import os

TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"

os.environ.setdefault(TELEMETRY_OFF, "1")

import onnxruntime  # noqa: E402, TID251

__all__ = ["TELEMETRY_OFF", "onnxruntime"]
