"""Server reflection lets a caller without the .proto discover the service and call it."""

from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.support.harness import serving

SERVICE = "dragoman.v1.TranslationService"


async def ask(channel: grpc.aio.Channel, **query: str) -> Any:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
    request: Any = reflection_pb2.ServerReflectionRequest
    return await stub.ServerReflectionInfo(iter([request(**query)])).read()


async def test_services_are_listed() -> None:
    async with serving() as running, grpc.aio.insecure_channel(running.address) as channel:
        answer = await ask(channel, list_services="")
    assert {service.name for service in answer.list_services_response.service} == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_translate_can_be_called_through_reflection() -> None:
    async with serving() as running, grpc.aio.insecure_channel(running.address) as channel:
        answer = await ask(channel, file_containing_symbol=SERVICE)
        pool = descriptor_pool.DescriptorPool()
        for file in answer.file_descriptor_response.file_descriptor_proto:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Translate")
        request = message_factory.GetMessageClass(method.input_type)
        response_class: Any = message_factory.GetMessageClass(method.output_type)
        call: Any = channel.unary_unary(
            f"/{SERVICE}/Translate",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_class.FromString,
        )
        response = await call(json_format.ParseDict({"texts": ["red kite"], "targetLanguage": "fr"}, request()))
    assert [each.text for each in response.translations] == ["red kite"]
