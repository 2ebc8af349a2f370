"""Events of ansible-runner become typed events, results and exit codes; no output is read."""

from __future__ import annotations

from typing import Any

from duckctl.errors import ExitCode
from duckctl.playbook import HostEvent, HostResult, PlaybookResult, PlayStarted, TaskStarted
from duckctl.playbook.events import Stats, diff_text, failure_message, read_event


def runner_event(kind: str, **data: Any) -> dict[str, Any]:
    return {"event": kind, "stdout": "nonsense: [wrong-host]", "event_data": data}


def test_t52_verbose_output_is_never_read() -> None:
    """T52: host and outcome come from the event's data; a misattributed line says nothing."""
    verbose = {"event": "verbose", "stdout": "fatal: [duck01]: FAILED!", "event_data": {}}
    assert read_event(verbose) is None
    event = read_event(
        runner_event("runner_on_ok", host="duck01", task="t", role="r", res={"changed": True})
    )
    assert event == HostEvent("duck01", "t", "r", "changed")


def test_plays_and_tasks() -> None:
    """The start of a play, of a task and of a handler are events of their own."""
    assert read_event(runner_event("playbook_on_play_start", name="Host")) == PlayStarted("Host")
    for kind in ("playbook_on_task_start", "playbook_on_handler_task_start"):
        assert read_event(runner_event(kind, task="t", role="r")) == TaskStarted("t", "r")


def test_failures_say_why() -> None:
    """A failure's message has what the module, its items and its command said, and no secret."""
    items = {
        "msg": "One or more items failed",
        "results": [{"failed": True, "item": "node0", "msg": "too few"}, {"item": "node1"}],
    }
    assert failure_message(items) == "One or more items failed\nnode0: too few"
    assert failure_message({"msg": "non-zero", "stderr": "no such file"}).endswith("no such file")
    assert "secrets" in failure_message({"censored": "the output has been hidden"})
    assert failure_message({}) == "failed without a message"


def test_diffs() -> None:
    """Module diffs become unified diffs; several are joined; a prepared one is passed on."""
    one = {"before": "a\nb\n", "after": "a\nc\n", "before_header": "f", "after_header": "f"}
    text = diff_text({"diff": [one, {"prepared": "-x\n+y"}]})
    assert text.splitlines() == [
        *("--- f", "+++ f", "@@ -1,2 +1,2 @@", " a", "-b", "+c"),
        *("-x", "+y"),
    ]
    assert diff_text({"diff": {"before": "", "after": ""}}) == ""
    assert diff_text({}) == ""


def test_a_tolerated_failure_is_marked() -> None:
    """A failure with ignore_errors is told apart, so that it is not taken for the reason."""
    event = read_event(
        runner_event("runner_on_failed", host="h", task="t", res={"msg": "m"}, ignore_errors=True)
    )
    assert isinstance(event, HostEvent)
    assert (event.outcome, event.tolerated, event.message) == ("failed", True, "m")


def test_debug_messages_reach_the_person() -> None:
    """What a debug task says is a message; a module's own msg on success is not."""
    said = runner_event(
        "runner_on_ok", host="h", task_action="ansible.builtin.debug", res={"msg": "due"}
    )
    quiet = runner_event("runner_on_ok", host="h", task_action="duck_vfio", res={"msg": "due"})
    events = [read_event(said), read_event(quiet)]
    assert [e.message for e in events if isinstance(e, HostEvent)] == ["due", ""]


def test_statistics() -> None:
    """The final event counts by kind and host, also for hosts that were never reached."""
    stats = read_event(
        runner_event("playbook_on_stats", ok={"a": 3}, changed={"a": 1}, dark={"b": 1})
    )
    assert isinstance(stats, Stats)
    assert stats.hosts() == ["a", "b"]
    assert (stats.count("ok", "a"), stats.count("dark", "b"), stats.count("ok", "b")) == (3, 1, 0)


def host(name: str, failed: int = 0, unreachable: int = 0, changed: int = 0) -> HostResult:
    return HostResult(name, 1, changed, failed, unreachable, 0)


def result(*hosts: HostResult) -> PlaybookResult:
    return PlaybookResult("host", "run", False, 1.0, hosts)


def test_exit_codes() -> None:
    """All well 0, none reached 4, a part 3, none well 1; unreachable beats failed beats changed."""
    assert result(host("a"), host("b", changed=1)).exit_code == ExitCode.OK
    assert result(host("a", unreachable=1)).exit_code == ExitCode.UNREACHABLE
    assert result(host("a"), host("b", failed=1)).exit_code == ExitCode.PARTIAL
    assert result(host("a", failed=1)).exit_code == ExitCode.FAILURE
    assert host("a", 1, 1, 1).status == "unreachable"
    assert host("a", 1, 0, 1).status == "failed"
    assert result(host("a", changed=2), host("b", changed=1)).changed == 3
