# syntax=docker/dockerfile:1
# The image of controller, segment store and operator, where an engine and a registry can be reached:
#     docker build --tag localhost/tailrace:dev .
# Elsewhere `make images` assembles the same without either (docs/images.md); a test keeps both in step.
ARG PYTHON=python:3.11-slim-bookworm

# ---- our wheel, with the native kernel
FROM ${PYTHON} AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY requirements/build.lock requirements/
RUN pip install --no-cache-dir --require-hashes --only-binary=:all: -r requirements/build.lock
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY services services
COPY operator operator
RUN pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheel .

# ---- the environment: locked dependencies, without what no program of ours uses
FROM ${PYTHON} AS dependencies
COPY requirements/image.lock /
RUN python -m venv --without-pip /opt/tailrace \
    && pip --python /opt/tailrace/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes --only-binary=:all: \
        -r /image.lock \
    && find /opt/tailrace -type d \( -name test -o -name tests -o -name SelfTest \) -prune -exec rm -r {} + \
    && rm -r /opt/tailrace/lib/python3.11/site-packages/kubernetes/aio \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/tailrace

# ---- what is ours, in a folder of its own so that it becomes a layer of its own
FROM dependencies AS application
COPY --from=wheel /wheel /wheel
RUN pip --python /opt/tailrace/bin/python install --no-cache-dir --no-compile --no-deps --no-index --root /application /wheel/*.whl \
    && python -m compileall -q --invalidation-mode unchecked-hash -s /application -p / /application/opt/tailrace

FROM ${PYTHON}
LABEL org.opencontainers.image.title="Tailrace" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/tailrace/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=dependencies /opt/tailrace /opt/tailrace
COPY --from=application /application/opt/tailrace /opt/tailrace
WORKDIR /
USER 65532:65532
ENTRYPOINT ["/opt/tailrace/bin/tailrace"]
