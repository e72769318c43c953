"""A model over HTTP: what `bayesrule predict` says, and a sentence for all that does not fit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib import request
from urllib.error import HTTPError, URLError

import pytest
from calling import FAST, call, only_line, table

from bayesrule.app import serving
from bayesrule.app.saved import read_model
from tests.app.test_cli_folders import ENVIRONMENT

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pandas = pytest.importorskip("pandas")

ROW = {"x": 0.5, "z": -1, "colour": "red"}


class Answer(NamedTuple):
    status: int
    document: Any


class Client(NamedTuple):
    """Where a server listens."""

    address: str

    def ask(self, path: str, body: Any = None) -> Answer:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with request.urlopen(request.Request(self.address + path, data), timeout=60) as found:
                return Answer(found.status, json.loads(found.read()))
        except HTTPError as problem:
            return Answer(problem.code, json.loads(problem.read()))

    def rows(self, *rows: Any) -> Answer:
        return self.ask("/predict", {"rows": list(rows)})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of numbers, one of classes, and one that fills in what is missing."""
    place = tmp_path_factory.mktemp("models")
    found = {}
    for name, target, words in (
        ("numbers", "price", []),
        ("classes", "kind", []),
        ("filled", "price", ["--missing", "impute"]),
    ):
        cells = {"x": {4: None}} if name == "filled" else {}
        other = "kind" if target == "price" else "price"
        data = table(place, f"{name}.csv", drop=(other,), **cells)
        found[name] = place / name
        said = call("fit", data, "--target", target, "--out", found[name], *FAST, *words)
        assert said.code == 0, said
    return found


@pytest.fixture(scope="module", params=["numbers", "classes", "filled"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def clients(folders: dict[str, Path]) -> Iterator[dict[str, Client]]:
    """A server for each model, on this machine alone."""
    found, running = {}, []
    for name, folder in folders.items():
        service = serving.Service(read_model(folder), most_bytes=50_000)
        server, socket = (
            serving.server(serving.application(service)),
            serving.listening("127.0.0.1", 0),
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
        thread.start()
        running.append((server, thread, socket))
        found[name] = Client(f"http://127.0.0.1:{socket.getsockname()[1]}")
        while not server.started:
            time.sleep(0.02)
    yield found
    for server, thread, socket in running:
        server.should_exit = True
        thread.join()
        socket.close()


def test_answers_are_those_of_the_command_line(
    clients: dict[str, Client], folders: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    rows = [ROW, {**ROW, "colour": "blue", "x": -2.25}]
    pandas.DataFrame(rows).to_csv(tmp_path / "new.csv", index=False)
    said = json.loads(call("predict", folders[kind], tmp_path / "new.csv", "--json").out)
    assert clients[kind].rows(*rows) == (200, {"predictions": said["predictions"]})


def test_a_service_is_healthy_and_describes_itself(clients: dict[str, Client]) -> None:
    status, found = clients["numbers"].ask("/health")
    assert (status, found["status"], found["target"]) == (200, "ok", "price")
    document = clients["classes"].ask("/openapi.json").document
    content = document["paths"]["/predict"]["post"]["requestBody"]["content"]
    row = content["application/json"]["schema"]["properties"]["rows"]["items"]
    assert row["properties"]["x"] == {"type": "number"}
    assert row["properties"]["colour"] == {"enum": ["blue", "green", "red"]}
    assert row["required"] == ["x", "z", "colour"]


def test_what_is_missing_is_filled_in_where_training_filled_it_in(
    clients: dict[str, Client],
) -> None:
    assert clients["filled"].rows({**ROW, "x": None}, ROW).status == 200
    found = clients["numbers"].rows(ROW, {**ROW, "x": None})
    assert found.status == 422
    assert "Column 'x' of 'the request' has no finite value in row 1" in found.document["detail"]


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ([{"z": 1, "colour": "red"}], 422, "lacks 'x', which the training data had"),
        ([{**ROW, "colour": "mauve"}], 422, "'mauve' in row 0, which the training data do not"),
        ([ROW, {**ROW, "x": "big"}], 422, "'big' in row 1: text. Write plain numbers"),
        ([{**ROW, "x": [1, 2]}], 422, "Column 'x' of 'the request' holds numbers"),
        ([{**ROW, "x": "2,5"}], 422, "'2,5' in row 0"),
        ([{**ROW, "z": 1e999}], 400, "holds Infinity, which is no number"),
        ([{**ROW, "z": float("nan")}], 400, "holds NaN, which is no number; a missing value is"),
        (b'{"rows": [{"x": 1e999, "z": 1, "colour": "red"}]}', 422, "no finite value in row 0"),
        ([], 422, "with one row or more"),
        ([1, 2], 422, '{"rows": [{"column": value, ...}, ...]}'),
        (b"", 400, "The body is not json"),
        (b'{"rows": [', 400, "The body is not json"),
        (b"\xff\xfe\x00", 400, "The body is not json"),
        (b"[" * 40_000, 400, "The body is not json"),
        (b'["rows"]', 422, "with one row or more"),
        (b'{"rows": [' + b" " * 60_000, 413, "larger than 50000 bytes; send fewer rows"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    clients: dict[str, Client], body: Any, status: int, expected: str
) -> None:
    whole = body if isinstance(body, bytes) else {"rows": body}
    found = clients["numbers"].ask("/predict", whole)
    assert found.status == status, found
    assert expected in found.document["detail"]
    # And goes on.
    assert clients["numbers"].rows(ROW).status == 200


def test_other_paths_and_methods_are_refused(clients: dict[str, Client]) -> None:
    assert clients["numbers"].ask("/nothing").status == 404
    assert clients["numbers"].ask("/predict").status == 405


def test_many_requests_at_once_get_their_own_answers(clients: dict[str, Client]) -> None:
    client = clients["numbers"]
    alone = [client.rows({**ROW, "x": i}) for i in range(8)]
    found: dict[int, Answer] = {}

    def ask(i: int) -> None:
        found[i] = client.rows({**ROW, "x": i})

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(8)] == alone


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_this_machine_and_stops_when_told(
    folders: dict[str, Path], how: signal.Signals
) -> None:
    words = [sys.executable, "-m", "bayesrule", "serve", str(folders["numbers"]), "--port", "0"]
    with subprocess.Popen(
        words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        client, end = Client(address.removesuffix("/docs")), time.monotonic() + 60
        while time.monotonic() < end:
            try:
                assert client.rows(ROW).status == 200
                break
            except URLError:
                time.sleep(0.05)
        os.kill(process.pid, how)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert said == "bayesrule: The server has stopped.\n"


def test_an_address_in_use_and_a_missing_extra_are_one_line(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving.listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert "in use" in only_line(call("serve", folders["numbers"], "--port", str(port)))
    said = call("serve", folders["numbers"], "--port", "70000")
    assert "a whole number of at least 0 and at most 65535" in only_line(said)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "pip install 'bayesrule[serve]'" in only_line(call("serve", folders["numbers"]))
