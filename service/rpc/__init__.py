"""gRPC side of the server: methods, interceptor, statuses, authentication and transport."""
