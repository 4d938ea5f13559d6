# One image per part; EXTRAS is the extra of pyproject.toml that it needs: streams, evaluator, storage, all.
#   docker build --build-arg EXTRAS=storage -t driftline-sink .
FROM python:3.11-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG EXTRAS=all
COPY --from=wheel /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(ls /wheels/*.whl)[${EXTRAS}]" \
    && rm -r /wheels \
    && useradd --uid 1000 --create-home driftline \
    && mkdir /data \
    && chown driftline: /data
USER driftline
WORKDIR /home/driftline
ENV PYTHONUNBUFFERED=1
# Stream workers start at once on processors like that of the build; on others they compile it again.
RUN if python -c 'import numba' 2> /dev/null; then python -m driftline.streams.warm; fi
CMD ["driftline", "--help"]
