"""Proves that `duckctl chat` shows answers as they come and says clearly what went wrong."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from server_kit import (
    DEADLINE_S,
    ROOT,
    ScriptedEngine,
    ScriptedHandle,
    ducklet_tokenizer,
    live_server,
    says,
    scripted_service,
    wait_until,
)

from duckctl import cli
from duckctl.chat_client import (
    LINE_BYTES_MAX,
    ChatClient,
    ChatEnd,
    ServerError,
    read_key,
    stream_lines,
)
from duckctl.commands.chat import speed_line
from duckctl.errors import ExitCode, UsageError


def chat(*arguments: str, stdin: str | None = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duckctl", "chat", *arguments],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\r"], ids=ascii)
def test_characters_that_end_lines_elsewhere_are_part_of_an_answer(sign: str) -> None:
    """JSON lets the first three stand in its strings as they are; the server sends them so."""
    engine = ScriptedEngine(script=says(f"one{sign}two"))
    with live_server(scripted_service(engine)) as url, ChatClient(url) as client:
        *parts, end = client.stream([{"role": "user", "content": "x"}], model="ducklet")
    assert isinstance(end, ChatEnd)
    assert "".join(part.content for part in parts if not isinstance(part, ChatEnd)) == (
        f"one{sign}two"
    )


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stream_is_cut_into_lines_wherever_it_was_cut_into_packets(size: int) -> None:
    text = "data: 🦆\r\n\ndata: a\u2028b\n\xa0\nlast".encode()
    chunks = [text[begin : begin + size] for begin in range(0, len(text), size)]
    assert list(stream_lines(chunks)) == ["data: 🦆", "", "data: a\u2028b", "\xa0", "last"]


def test_a_line_without_an_end_is_refused() -> None:
    chunks = (b"x" * 100_000 for _ in range(LINE_BYTES_MAX // 100_000 + 1))
    with pytest.raises(ServerError, match=f"more than {LINE_BYTES_MAX} bytes"):
        list(stream_lines(chunks))


def encoded(text: str) -> list[int]:
    return ducklet_tokenizer().encode_text(text)


def test_one_question_prints_the_answer_on_stdout_and_the_rest_on_stderr() -> None:
    engine = ScriptedEngine(script=says("[b]hm[/b]", 8189, "Quack \x1b[31m:smile: 🦆 [i]x[/i]"))
    with live_server(scripted_service(engine)) as url:
        result = chat("--url", url, "--thinking", "--system", "Be a duck", "Say quack")
    assert result.stdout == "Quack [31m:smile: 🦆 [i]x[/i]\n"  # no markup, no escape sequences
    assert "[b]hm[/b]" in result.stderr
    assert "first after 0.50 s" in result.stderr
    assert "MTP 3 of 5 accepted" in result.stderr
    assert result.returncode == 0
    prompt = ducklet_tokenizer().decode(engine.handles[0].prompt_ids, keep_control=True)
    assert prompt == ("<｜begin▁of▁sentence｜>Be a duck<｜User｜>Say quack<｜Assistant｜><think>")


def test_options_reach_the_server_and_a_question_can_be_piped_in() -> None:
    engine = ScriptedEngine(script=says("4", reason="length"))
    with live_server(scripted_service(engine)) as url:
        result = chat(
            *("--url", url, "--max-tokens", "7", "--temperature", "0", "--seed", "3"),
            stdin="2+2?\n",
        )
    assert result.stdout == "4\n"
    assert "cut at the token limit" in result.stderr
    handle = engine.handles[0]
    assert handle.prompt_ids[2:-2] == encoded("2+2?")
    assert (handle.params.max_tokens, handle.params.temperature, handle.params.seed) == (7, 0, 3)


def test_no_server_is_a_clear_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = chat("--url", f"http://127.0.0.1:{unused.getsockname()[1]}", "Hi")
    assert result.returncode == 4
    assert "error: no server answers at http://127.0.0.1:" in result.stderr
    assert "duckctl serve" in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_errors_before_and_during_an_answer_are_told_in_the_servers_words() -> None:
    def script(handle: ScriptedHandle) -> None:
        handle.tokens(encoded("Hello wor"))
        handle.finish("error", "d02 does not answer (layer 3)")

    engine = ScriptedEngine(script=script)
    with live_server(scripted_service(engine)) as url:
        broken = chat("--url", url, "Hi")
        engine.full = True
        busy = chat("--url", url, "Hi")
        unknown = chat("--url", url, "--model", "gpt-5", "Hi")
    assert (broken.returncode, broken.stdout) == (1, "Hello wor\n")
    assert "error: d02 does not answer (layer 3)" in broken.stderr
    assert (busy.returncode, busy.stdout) == (1, "")
    assert "try again later" in busy.stderr
    assert "'gpt-5' does not exist" in unknown.stderr


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "ftp://x",
        "http://",
        "http://[::1",
        "http://x:99999",
        "http://x:y",
        "http://a\tb",
        "http://a\udcff",
        "http://a/\udcff",
        f"http://{'a' * 70}",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address of a server"):
        ChatClient(url)


def test_a_refused_address_is_exit_code_2() -> None:
    result = chat("--url", "http://[::1", "Hi")
    assert result.returncode == 2
    assert "is no address of a server" in result.stderr
    assert "hint: expected e.g. http://127.0.0.1:8000" in result.stderr


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF\xff\x00", b"one\ntwo\n", "Schlüssel".encode(), b"k" * 10_000]
)
def test_a_file_that_holds_no_key_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{path} is no file of an API key"):
        read_key(path)
    path.write_bytes(b"a good key\n")
    assert read_key(path) == "a good key"
    with pytest.raises(UsageError, match="can't read the API key"):
        read_key(tmp_path)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["a\udcff"], "the question"),
        (["Hi", "--system", "\udcff"], "--system"),
        (["Hi", "--model", "\udcff"], "--model"),
    ],
)
def test_arguments_that_are_no_utf8_are_named(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python gives their bytes as lone surrogates, which no JSON can hold."""
    assert cli.run(["chat", *words]) == ExitCode.USAGE
    assert f"error: {what} is not valid UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_piped_bytes_that_are_no_utf8_are_named(
    errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways in which Python reads stdin, depending on the locale."""
    piped = io.TextIOWrapper(io.BytesIO(b"Hi \xff"), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", piped)
    assert cli.run(["chat", "--model", "m"]) == ExitCode.USAGE
    assert "error: what was piped in is not valid UTF-8 text" in capsys.readouterr().err


def test_an_empty_question_is_refused() -> None:
    with live_server(scripted_service(ScriptedEngine())) as url:
        assert "the question is empty" in chat("--url", url, stdin=" \n").stderr


def test_ctrl_c_stops_a_single_answer_with_code_130_and_cancels_it() -> None:
    engine = ScriptedEngine(script=lambda handle: handle.tokens(encoded("Quack")))
    with live_server(scripted_service(engine)) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "duckctl", "chat", "--url", url, "Hi"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.read(5) == "Quack"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert "Traceback" not in errors
        wait_until(engine.handles[0].cancelled.is_set, "the request is cancelled")


class Terminal:
    """A person at a terminal."""

    def __init__(self, url: str, log: Path, encoding: str) -> None:
        self.process_id, self._terminal = pty.fork()
        if self.process_id == 0:
            os.chdir(ROOT)
            os.environ.update(TERM="dumb", PYTHONIOENCODING=encoding)
            os.execv(sys.executable, [sys.executable, "-m", "duckctl", "chat", "--url", url])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        os.set_blocking(self._terminal, False)
        self.shown = ""
        self._log = log
        self._ended = False

    def expect(self, text: str) -> None:
        """Wait until ``text`` is on the screen; what came before it is forgotten."""
        wait_until(lambda: text in self._read(), f"{text!r} on the screen")
        self.shown = self.shown.partition(text)[2]

    def type(self, text: str | bytes) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode() if isinstance(text, str) else text)

    def kill(self) -> None:
        """End the program if the test has failed before its end."""
        if not self._ended:
            os.kill(self.process_id, signal.SIGKILL)
            os.waitpid(self.process_id, 0)

    def exit_code(self) -> int:
        """Wait for the end of the program."""
        codes: list[int] = []

        def ended() -> bool:
            self._read()
            done, status = os.waitpid(self.process_id, os.WNOHANG)
            if done:
                self._ended = True
                codes.append(os.waitstatus_to_exitcode(status))
            return bool(done)

        wait_until(ended, "the program ends")
        os.close(self._terminal)
        return codes[0]

    def _read(self) -> str:
        with suppress(OSError):  # nothing there yet, or the program has ended
            self.shown += os.read(self._terminal, 4096).decode(errors="replace")
        self._log.write_text(self.shown)
        return self.shown


@contextmanager
def conversation(
    engine: ScriptedEngine, folder: Path, encoding: str = "utf-8"
) -> Iterator[Terminal]:
    with live_server(scripted_service(engine)) as url:
        terminal = Terminal(url, folder / "screen", encoding)
        try:
            yield terminal
        finally:
            terminal.kill()


def test_a_conversation_remembers_and_ctrl_c_ends_the_answer_then_the_program(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(script=says("First."))
    with conversation(engine, tmp_path) as terminal:
        terminal.expect("> ")
        terminal.type("One\n")
        terminal.expect("First.")
        terminal.expect("> ")
        engine.script = lambda handle: handle.tokens(encoded("Endless"))
        terminal.type("Two\n")
        terminal.expect("Endless")
        terminal.type("\x03")
        terminal.expect("stopped")
        wait_until(engine.handles[1].cancelled.is_set, "the answer is cancelled")
        engine.script = lambda handle: handle.finish("error", "d01 is gone")
        terminal.expect("> ")
        terminal.type("Three\n")
        terminal.expect("error: d01 is gone")
        engine.script = says("Fourth.")
        terminal.expect("> ")
        terminal.type("Four\n")
        terminal.expect("Fourth.")
        terminal.expect("> ")
        terminal.type("/new\n")
        terminal.expect("> ")
        terminal.type("Five\n")
        terminal.expect("Fourth.")
        terminal.expect("> ")
        terminal.type("\x03")
        assert terminal.exit_code() == 0
    prompts = [ducklet_tokenizer().decode(h.prompt_ids) for h in engine.handles]
    # The stopped and the failed answer have left no trace.
    assert prompts[3] == "One</think>First.Four</think>"
    assert prompts[4] == "Five</think>"


@pytest.mark.parametrize(
    "errors", ["strict", pytest.param("surrogateescape", marks=pytest.mark.slow)]
)
def test_a_conversation_goes_on_after_bytes_that_are_no_utf8(errors: str, tmp_path: Path) -> None:
    engine = ScriptedEngine(script=says("First."))
    with conversation(engine, tmp_path, f"utf-8:{errors}") as terminal:
        terminal.expect("> ")
        terminal.type(b"One \xff\n")
        terminal.expect("error: the question is not valid UTF-8 text")
        terminal.expect("> ")
        terminal.type("Two\n")
        terminal.expect("First.")
        terminal.expect("> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0
    assert len(engine.handles) == 1


def test_a_conversation_that_is_told_to_end_ends_also_during_an_answer(tmp_path: Path) -> None:
    """SIGTERM is no Ctrl-C, which would only stop the answer."""
    engine = ScriptedEngine(script=lambda handle: handle.tokens(encoded("Endless")))
    with conversation(engine, tmp_path) as terminal:
        terminal.expect("> ")
        terminal.type("One\n")
        terminal.expect("Endless")
        os.kill(terminal.process_id, signal.SIGTERM)
        assert terminal.exit_code() == ExitCode.INTERRUPTED


def test_the_speed_line_tells_what_is_known() -> None:
    assert speed_line(ChatEnd("stop")) == "[0 tokens]"
    measured = {"ttft_s": 0.3125, "tpot_s": 0.0625, "drafts_proposed": 11, "drafts_accepted": 9}
    line = speed_line(ChatEnd("stop", {"completion_tokens": 23}, measured))
    assert line == "[23 tokens, first after 0.31 s, 16.0 tokens/s, MTP 9 of 11 accepted]"


def test_the_command_starts_without_torch() -> None:
    code = "import sys, duckctl.commands.chat; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", f"import json; {code}"], cwd=ROOT, capture_output=True, text=True
    )
    modules = json.loads(result.stdout)
    assert not {"torch", "numpy", "httpx", "host_runtime"} & set(modules)
