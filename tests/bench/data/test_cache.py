"""Finding and downloading files: what is verified, what is left behind, what is said."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest

from bayesrule.app.data import DataError
from benchmarks.data.cache import cache_folder, locate, read_unpacked

BODY = b"some bytes " * 20_000
SUM = hashlib.sha256(BODY).hexdigest()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_download_lands_in_the_cache_and_is_not_asked_for_twice(cache: Path, site: Any) -> None:
    site.files["a.bin"] = BODY
    urls = [f"{site.url}/a.bin"]
    path = locate("set/a.bin", sha256=SUM, urls=urls)
    assert path == cache / "set/a.bin"
    assert path.read_bytes() == BODY
    assert locate("set/a.bin", sha256=SUM, urls=urls) == path
    assert site.asked == ["a.bin"]
    assert files_in(cache) == ["set", "set/a.bin"]


def test_data_folder_comes_before_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    for folder in (own, cache):
        (folder / "set").mkdir(parents=True)
        (folder / "set/a.bin").write_bytes(BODY)
    assert locate("set/a.bin") == cache / "set/a.bin"
    monkeypatch.setenv("BAYESRULE_DATA", str(own))
    assert locate("set/a.bin", sha256=SUM) == own / "set/a.bin"


def test_bad_file_in_the_data_folder_is_an_error_and_stays(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.bin").write_bytes(b"other")
    monkeypatch.setenv("BAYESRULE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"a\.bin.*unset BAYESRULE_DATA"):
        locate("a.bin", sha256=SUM)
    assert (tmp_path / "a.bin").read_bytes() == b"other"


def test_data_folder_that_is_no_folder_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYESRULE_DATA", str(cache / "nowhere"))
    with pytest.raises(DataError, match=r"BAYESRULE_DATA is '.*nowhere', which is not a folder"):
        locate("a.bin")


def test_wrong_sum_names_both_and_leaves_nothing(cache: Path, site: Any) -> None:
    site.files["a.bin"] = b"tampered"
    got = hashlib.sha256(b"tampered").hexdigest()
    with pytest.raises(DataError, match=rf"'a\.bin'.*{got}.*{SUM}"):
        locate("set/a.bin", sha256=SUM, urls=[f"{site.url}/a.bin"])
    assert files_in(cache) == ["set"]


def test_bad_file_in_the_cache_is_replaced(cache: Path, site: Any) -> None:
    cache.mkdir()
    (cache / "a.bin").write_bytes(b"rotten")
    site.files["a.bin"] = BODY
    assert locate("a.bin", sha256=SUM, urls=[f"{site.url}/a.bin"]).read_bytes() == BODY


def test_bad_file_in_the_cache_without_a_network_is_reported(cache: Path) -> None:
    cache.mkdir()
    (cache / "a.bin").write_bytes(b"rotten")
    with pytest.raises(DataError, match=rf"cached copy was bad.*{SUM}"):
        locate("a.bin", sha256=SUM)
    assert files_in(cache) == []


def test_interrupted_download_leaves_nothing(cache: Path, site: Any) -> None:
    site.files["a.bin"] = BODY
    site.cut.add("a.bin")
    with pytest.raises(DataError, match=r"110,000 of 220,000 bytes|IncompleteRead"):
        locate("a.bin", urls=[f"{site.url}/a.bin"])
    assert files_in(cache) == []


def test_keyboard_interrupt_leaves_nothing(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient:
        def update(self, count: int) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            pass

    monkeypatch.setattr("benchmarks.data.download.progress_for", lambda *_: Impatient())
    site.files["a.bin"] = BODY
    with pytest.raises(KeyboardInterrupt):
        locate("a.bin", urls=[f"{site.url}/a.bin"])
    assert files_in(cache) == []


def test_next_address_is_tried_after_a_404(cache: Path, site: Any) -> None:
    site.files["mirror/a.bin"] = BODY
    urls = [f"{site.url}/gone/a.bin", f"{site.url}/mirror/a.bin"]
    assert locate("a.bin", sha256=SUM, urls=urls).read_bytes() == BODY
    assert site.asked == ["gone/a.bin", "mirror/a.bin"]


def test_404_says_what_was_looked_for_and_where(cache: Path, site: Any) -> None:
    with pytest.raises(DataError) as caught:
        locate("set/a.bin", urls=[f"{site.url}/a.bin"])
    message = str(caught.value)
    for part in ("set/a.bin", "BAYESRULE_DATA", str(cache), "404", "by hand"):
        assert part in message


def test_offline_is_said_plainly(cache: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DataError, match=r"Cannot find 'a\.bin'.*refused.*Set BAYESRULE_DATA"):
        locate("a.bin", urls=[f"http://127.0.0.1:{port}/a.bin"])


def test_progress_without_tqdm_is_plain_lines(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without_tqdm(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tqdm":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    site.files["a.bin"] = BODY
    locate("a.bin", urls=[f"{site.url}/a.bin"])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "downloading a.bin (220,000 bytes)"
    assert "  a.bin: 100 %" in lines
    assert lines[-1] == "  a.bin: 220,000 bytes received"


def test_progress_with_tqdm_is_a_bar(
    cache: Path, site: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    site.files["a.bin"] = BODY
    locate("a.bin", urls=[f"{site.url}/a.bin"])
    captured = capsys.readouterr()
    assert "a.bin: 100%" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("level", [1, 9])
def test_content_sum_accepts_recompressed_copies(cache: Path, level: int) -> None:
    cache.mkdir()
    (cache / "a.gz").write_bytes(gzip.compress(BODY, level))
    path = locate("a.gz", content=f"sha256:{SUM}")
    assert read_unpacked(path) == BODY


def test_broken_archive_is_named(cache: Path) -> None:
    cache.mkdir()
    (cache / "a.gz").write_bytes(gzip.compress(BODY)[:-9])
    with pytest.raises(DataError, match=r"a\.gz"):
        read_unpacked(cache / "a.gz")
    with pytest.raises(DataError, match=r"a\.gz.*cannot be read"):
        locate("a.gz", content=f"sha256:{SUM}")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAYESRULE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/bayesrule")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache/bayesrule"
    monkeypatch.setenv("BAYESRULE_CACHE", "/mine")
    assert cache_folder() == Path("/mine")


def test_unwritable_cache_names_the_way_out(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_bytes(b"a file where the folder should be")
    site.files["a.bin"] = BODY
    with pytest.raises(DataError, match="Set BAYESRULE_CACHE"):
        locate("a.bin", urls=[f"{site.url}/a.bin"])


@pytest.mark.parametrize("path", ["/etc/passwd", "../a.bin", "set/../../a.bin"])
def test_paths_outside_the_folders_are_refused(cache: Path, path: str) -> None:
    with pytest.raises(DataError, match="relative path"):
        locate(path)


def test_only_web_addresses_are_taken(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(BODY)
    with pytest.raises(DataError, match="only http and https"):
        locate("a.bin", urls=[(tmp_path / "a.bin").as_uri()])
