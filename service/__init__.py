"""The server and its client: ONNX Runtime engine, gRPC, metrics, command line. Never imports torch."""
