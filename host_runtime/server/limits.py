"""Every limit of the server, in one place."""

from __future__ import annotations

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Largest request body; 160 K tokens of text are well below it."""

STOP_STRINGS_MAX = 16
"""Stop strings of one request (OpenAI allows 4)."""

STOP_STRING_CHARACTERS_MAX = 1024
"""Length of one stop string: this much text may be held back."""

STOP_TOKEN_IDS_MAX = 1024
"""Stop tokens of one request."""

NESTING_MAX = 256
"""Levels of lists and objects in JSON from clients and in arguments that the model writes."""

SHOWN_CHARACTERS_MAX = 80
"""So much of a client's own text is repeated in an error message."""

MESSAGES_MAX = 4096
"""Messages of one conversation."""

TOOLS_MAX = 128
"""Functions offered in one request (OpenAI's own limit)."""

CONNECTIONS_SPARE = 512
"""Connections besides those of requests that run or wait: idle ones, and those of requests that are
refused or ask how the server is."""

FILES_SPARE = 256
"""Open files besides connections: sockets of the ducks, the model's files, the log."""

REQUEST_DEADLINE_S = 3600.0
"""How long a request may take when the run file doesn't say."""

UNREAD_MARGIN_S = 30.0
"""How long after its deadline a streamed answer may still wait for its client to read it."""

UNREAD_MAX_S = 900.0
"""How long a client may leave what was sent unread before its connection is dropped, however long
its request's deadline is; as long as the kernel retries for a client that has vanished."""

KEEP_ALIVE_S = 15.0
"""A silent stream sends a comment after this long (at most twice as long, when the engine falls
silent while text is held back), so that proxies and clients see that it lives."""

FINISH_WAIT_S = 10.0
"""How long a cancelled request may take to report its final counts."""

SHUTDOWN_GRACE_S = 5.0
"""After SIGTERM: running answers may finish for this long, then they are cancelled."""

SAME_STOP_S = 1.0
"""Signals this soon after the first one are of the same stop: a service manager may send one to
every process of a service, and duckctl passes its own on."""

SHUTDOWN_MAX_S = 8.0
"""After SIGTERM: connections still open after this are closed."""

COMPLETION_TOKENS_DEFAULT = 16
"""OpenAI's default of max_tokens in /v1/completions."""

RETRY_AFTER_S = 2
"""What a client is told to wait when the queue is full."""

TRACE_CALLS_MAX = 65536
"""Calls that a trace may keep, as the transport allows."""
