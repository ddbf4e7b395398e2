# The studio in a container, as a user without privileges:  docker build -t stochseg-studio .
# It computes on CPUs, and on NVIDIA GPUs if the container is given some. For a smaller image without CUDA, name the package
# index of PyTorch's CPU builds (see its install page):  --build-arg TORCH_INDEX=URL
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG TORCH_INDEX
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir "$(ls /wheels/stochseg-*.whl)[studio]" \
    && rm -r /wheels \
    && useradd --create-home --uid 10001 studio \
    && install -d -o studio /data
USER studio
VOLUME /data
EXPOSE 8765
HEALTHCHECK CMD python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8765/healthz', timeout=5)"
# The token is mounted at /run/token; options can be added, such as --allow-host studio.example.org.
ENTRYPOINT ["stochseg", "studio", "--no-browser", "--host", "0.0.0.0", "--workspace", "/data", "--token-file", "/run/token"]
