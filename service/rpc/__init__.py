"""gRPC: methods, interceptor, statuses, authentication and transport."""
