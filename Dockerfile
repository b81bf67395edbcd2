# The server with the shipped model (`make image`), the same for a GPU (`make image-gpu`), and the exporter.
#
#   docker run --rm --read-only --stop-timeout 30 -p 127.0.0.1:50051:50051 dragoman:cpu
#   docker run --rm --read-only --stop-timeout 30 -p 127.0.0.1:50051:50051 -v /my/bundle:/bundle:ro dragoman:cpu
#
# Builds with the classic builder and with BuildKit.

ARG BASE_IMAGE=python:3.11-slim-bookworm

# The server, installed into one folder.
FROM ${BASE_IMAGE} AS build
# cpu or gpu. Never install both: their wheels share a folder.
ARG VARIANT=cpu
WORKDIR /source
# Only wheels with their hashes in a lock (`make lock`) are installed, and no source archives, which run code when
# installed. The tools that build dragoman's own wheel have a separate environment.
COPY deploy/image/build.lock deploy/image/${VARIANT}.lock ./
RUN python -m venv --without-pip /opt/build \
    && python -m venv --without-pip /opt/dragoman \
    && pip --python /opt/build/bin/python install --quiet --no-cache-dir --only-binary :all: --require-hashes \
        --requirement build.lock \
    && pip --python /opt/dragoman/bin/python install --quiet --no-cache-dir --only-binary :all: --require-hashes \
        --requirement "${VARIANT}.lock"
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY protos/ protos/
COPY bundle/ bundle/
COPY client/ client/
COPY model/ model/
COPY export/ export/
COPY service/ service/
RUN PATH=/opt/build/bin:${PATH} pip --python /opt/build/bin/python wheel --quiet --no-cache-dir --no-index --no-deps \
        --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/dragoman/bin/python install --quiet --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM ${BASE_IMAGE} AS runtime
ARG VARIANT=cpu
COPY --from=build /opt/dragoman/ /opt/dragoman/
# NVIDIA's wheels install their libraries outside the loader's search path. The driver's library, libcuda.so.1, comes
# from the host at run time.
RUN if [ "${VARIANT}" = gpu ]; then \
        find /opt/dragoman -type d -path '*/nvidia/*/lib' > /etc/ld.so.conf.d/nvidia.conf \
        && ldconfig \
        && ldd /opt/dragoman/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime_providers_cuda.so > /tmp/ldd \
        && cat /tmp/ldd \
        && sed -i '/libcuda\.so\.1 /d' /tmp/ldd \
        && if grep 'not found' /tmp/ldd; then exit 1; fi \
        && rm /tmp/ldd; \
    fi
COPY model/pretrained/en-fr-int8/ /bundle/
# Unless disabled, ONNX Runtime sends telemetry to its makers.
ENV PATH=/opt/dragoman/bin:${PATH} \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DRAGOMAN_HOST=0.0.0.0 \
    DRAGOMAN_METRICS_PORT=9464
USER 65532:65532
EXPOSE 50051 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "dragoman.service.probe"]
ENTRYPOINT ["dragoman"]
CMD ["serve", "/bundle"]

# The exporter and the trainer with PyTorch, added to the server. Not locked, so that you can choose the PyTorch build:
#   docker build --target export -t dragoman:export --build-arg TORCH_INDEX=URL .
#   docker run --rm -v "$PWD:/work" -u "$(id -u)" dragoman:export export CHECKPOINT BUNDLE
FROM build AS export
# An extra package index for torch; if empty, pip's default index, with a CUDA build of several gigabytes.
ARG TORCH_INDEX=
RUN printf '%s[cpu,export,train]' /wheels/*.whl > /wheels/requirements \
    && pip --python /opt/dragoman/bin/python install --quiet --no-cache-dir \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} --requirement /wheels/requirements
ENV PATH=/opt/dragoman/bin:${PATH}
WORKDIR /work
USER 65532:65532
ENTRYPOINT ["dragoman"]

# The default target.
FROM runtime
