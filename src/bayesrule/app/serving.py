"""A trained model over HTTP: rows of a table as json in, predictions out.

FastAPI reads annotations at run time, so this file does not postpone them with `__future__`.
"""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from bayesrule import __version__
from bayesrule.app.commands import predicted
from bayesrule.app.data import DataError, Table
from bayesrule.app.data.columns import Column, NumberColumn
from bayesrule.app.data.errors import require
from bayesrule.app.saved import SavedModel
from bayesrule.predicting.predict import How

ROWS = "rows"


class Refused(ValueError):
    """A request that cannot be answered: the HTTP status and a sentence that says why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Service:
    """Answers requests with a model: the options of `bayesrule predict`, and a size limit."""

    model: SavedModel
    how: How | None = None
    seed: int = 0
    level: float = 0.9
    most_bytes: int = 8 << 20

    def answer(self, body: bytes) -> dict[str, Any]:
        """The predictions for the rows of a request."""
        return {"predictions": self.predictions(table_of(body))}

    def predictions(self, table: Table) -> list[dict[str, Any]]:
        """The columns of `bayesrule predict`, one dict for each row."""
        encoder = self.model.encoder
        try:
            prediction = self.model.predict(table, self.how, seed=self.seed)
            figures = predicted.columns(prediction, encoder, self.level)
            predicted.refuse_not_finite(figures, table, encoder)
        except DataError as problem:
            raise Refused(422, str(problem)) from problem
        return predicted.rows(figures)

    def facts(self) -> dict[str, str]:
        """The answer of the health check."""
        names = {"target": self.model.encoder.target, "task": self.model.encoder.task.kind}
        return {"status": "ok", **names, "version": __version__}

    def request_schema(self) -> dict[str, Any]:
        """The OpenAPI schema of a request, column by column."""
        encoder = self.model.encoder
        fill = encoder.missing == "impute"
        closed = encoder.unseen == "error"
        cells = {column.name: _cell(column, fill, closed) for column in encoder.columns}
        row = {"type": "object", "properties": cells, "required": [] if fill else list(cells)}
        rows = {"type": "array", "items": row, "minItems": 1}
        return {"type": "object", "properties": {ROWS: rows}, "required": [ROWS]}


def _cell(column: Column, fill: bool, closed: bool) -> dict[str, Any]:
    """The schema of a column's cells."""
    if isinstance(column, NumberColumn):
        return {"type": ["number", "null"] if fill else "number"}
    if closed:
        return {"enum": [*column.levels, *([None] if fill else [])]}
    return {"type": ["string", "null"] if fill else "string"}


def table_of(body: bytes) -> Table:
    """The rows of a request as a table; raises `Refused` with a sentence for a malformed body."""
    import pandas

    try:
        document = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as problem:
        raise Refused(400, f"The body is not json: {problem}.") from problem
    rows = document.get(ROWS) if isinstance(document, dict) else None
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        shown = '{"rows": [{"column": value, ...}, ...]}'
        raise Refused(422, f"The body is {shown} with one row or more.")
    try:
        return Table.from_frame(pandas.DataFrame(rows), "the request")
    except DataError as problem:
        raise Refused(422, str(problem)) from problem


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is no number; a missing value is null")


def application(service: Service) -> Any:
    """The service as a FastAPI application: /predict, /health, and /docs to try them."""
    require("fastapi", "serving", extra="serve")
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.concurrency import run_in_threadpool

    app = FastAPI(title=f"Predictions of {service.model.encoder.target}", version=__version__)
    content = {"application/json": {"schema": service.request_schema()}}
    described = {"requestBody": {"required": True, "content": content}}

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Says that the model is loaded, and what it predicts."""
        return service.facts()

    @app.post("/predict", openapi_extra=described)
    async def predict(request: Request) -> dict[str, Any]:
        """The predictions for one or more rows of a table, in the order of the request."""
        try:
            body = await _body(request, service.most_bytes)
            return await run_in_threadpool(service.answer, body)
        except Refused as problem:
            raise HTTPException(problem.status, str(problem)) from problem

    return app


async def _body(request: Any, most: int) -> bytes:
    """The body of a request; one that is too large is refused before all of it has arrived."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise Refused(413, f"The body is larger than {most} bytes; send fewer rows at a time.")
    return bytes(body)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def server(app: Any, seconds: int = 10) -> Any:
    """A uvicorn server that, told to stop, has `seconds` to finish the requests it has begun."""
    uvicorn = require("uvicorn", "serving", extra="serve")
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=seconds)
    )


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Around a server: SIGINT and SIGTERM stop it and do not end the program as an error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(kind, lambda *_: None) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
